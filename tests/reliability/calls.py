"""Functions and layers, the arguments that each takes, and a way to call them.

What is refused is a ValueError, or TypeError and RuntimeError as of torch; an AttributeError, say,
comes from the depths.
"""

import resource

import pytest
import torch

import neural_similarity as ns
from neural_similarity import functional, models
from neural_similarity.nn import parse_similarity

REFUSED = ValueError, TypeError, RuntimeError


def tensors():
    """And a layer, by kind; new ones at every call, as the last ones may have been changed."""
    return {
        "x": torch.randn(2, 4, 5, 6),
        "weight": torch.randn(3, 4, 3, 3),
        "m": torch.randn(2, 9, 3, 4),
        "static": torch.eye(9),
        "line": torch.randn(2, 4, 7),
        "space": torch.randn(2, 4, 3, 4, 5),
        "features": torch.randn(3, 8),
        "line of features": torch.randn(3, 2, 8),
        "images": torch.randn(2, 4, 8, 8),
        "taps": torch.randn(3, 4, 3),
        "cube": torch.randn(3, 4, 3, 3, 3),
        "m of line": torch.randn(2, 3, 5),
        "m of space": torch.randn(2, 27, 1, 2, 3),
        "m of all": torch.randn(30, 30),
        "similar": ns.Conv2d(4, 3, 3, similarity="static-full"),
    }


WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
CONV = {"x": "x", "weight": "weight", "similarity": "m", "bias": None, **WINDOW, "blocks": None}
LAYER = {"in_channels": 4, "out_channels": 3, "kernel_size": 3, **WINDOW, "padding_mode": "zeros"}
SIZES = {"num_classes": 3, "width": 0.1, "in_channels": 4, "image_size": 8, "similarity": None}
FUNCTIONS = {
    functional.similarity_conv1d: CONV | {"x": "line", "weight": "taps", "similarity": "m of line"},
    functional.similarity_conv2d: CONV | {"backend": "auto"},
    functional.similarity_conv3d: CONV
    | {"x": "space", "weight": "cube", "similarity": "m of space"},
    functional.sphere_conv2d: {"x": "x", "weight": "weight", **WINDOW, "k": 0.3, "eps": 1e-4},
    functional.fold_kernel: {"weight": "weight", "similarity": "static", "blocks": None},
    functional.patch_norm: {"x": "x", "kernel_size": (3, 3), **WINDOW, "eps": 1e-4},
    functional.global_similarity: {"x": "x", "similarity": "m of all", "blocks": None},
    functional.global_attention: {"query": "x", "key": "x", "value": "x", "normalize": "softmax"},
    ns.macs: {"model": "similar", "channels": 4, "height": 5, "width": 6},
    parse_similarity: {"text": "Dynamic(Diagonal())"},
}
LAYERS = {
    **{
        layer: LAYER | {"similarity": "static-full"}
        for layer in (ns.Conv1d, ns.Conv2d, ns.Conv3d, ns.ConvTranspose2d)
    },
    ns.SphereConv2d: LAYER | {"angle": "cosine", "k": 0.3},
    ns.Linear: {"in_features": 8, "out_features": 3, "similarity": "static-full"},
    ns.LSTM: {"input_size": 8, "hidden_size": 4, "num_layers": 1, "similarity": "static-full"},
    ns.GlobalSimilarity: {"channels": 4, "size": (5, 6), "similarity": "static-diagonal"},
    ns.SelfAttention: {"channels": 4, "inner_channels": 2, "value_channels": 4},
    models.build: {"name": "cnn9", **SIZES},
}
"""They make modules, which are called."""
CALLED = FUNCTIONS | LAYERS
INPUTS = {ns.Conv1d: "line", ns.Conv3d: "space", ns.Linear: "features"}
INPUTS |= {ns.LSTM: "line of features", models.build: "images"}


def call(function, **changes):
    """Call anything with what it takes, but for `changes`; and with a tensor what it makes."""
    known = tensors()
    given = {k: known.get(v, v) if isinstance(v, str) else v for k, v in CALLED[function].items()}
    given |= changes
    sizes = [given.pop(n) for n in ("channels", "height", "width") if function is ns.macs]
    with torch.random.fork_rng():
        made = function(*given.values(), *sizes) if sizes else function(**given)
        if function in LAYERS:
            made = made(known[INPUTS.get(function, "x")])
            made = made[0] if isinstance(made, tuple) else made
    if isinstance(made, torch.Tensor) and made.requires_grad:
        made.sum().backward()


@pytest.fixture
def bounded():
    """What asks for more memory gets none, as it would on a smaller machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)

"""Functions, layers and specs, the arguments that each takes, and a way to call them.

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
    """And two layers, by kind; new ones at every call, as the last ones may have been changed."""
    x, weight = torch.randn(2, 4, 5, 6), torch.randn(3, 4, 3, 3)
    return {
        "x": x,
        "weight": weight,
        "m": torch.randn(2, 9, 3, 4),
        "full": torch.randn(2, 9, 9, 3, 4),
        "static": torch.eye(9),
        "diagonal": torch.ones(9),
        "bias": torch.zeros(3),
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
        "plain": torch.nn.Conv2d(4, 3, 3),
        "sphere": ns.SphereConv2d(4, 3, 3),
        "similar": ns.Conv2d(4, 3, 3, similarity="static-full"),
        "empty": torch.zeros(0, 4, 5, 6),
        "no channels": torch.zeros(2, 0, 5, 6),
        "no filters": torch.zeros(0, 4, 3, 3),
        "no taps": torch.zeros(3, 4, 0, 3),
        "number": torch.tensor(1.0),
        "integers": torch.ones(2, 4, 5, 6, dtype=torch.int64),
        "booleans": torch.ones(2, 4, 5, 6, dtype=torch.bool),
        "complex": torch.ones(2, 4, 5, 6, dtype=torch.complex64),
        "double": x.double(),
        "bfloat16": x.bfloat16(),
        "meta": x.to("meta"),
        "sparse": x.to_sparse(),
        "strided": torch.randn(2, 4, 5, 12)[..., ::2],
        "not finite": torch.full((2, 4, 5, 6), float("nan")),
        "gradient": torch.randn(2, 4, 5, 6, requires_grad=True),
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
    ns.convert: {"model": "plain", "similarity": "dynamic-diagonal", "where": None},
    ns.plan: {"model": "plain", "similarity": "dynamic-diagonal", "where": None},
    ns.fold: {"model": "similar", "dynamic": "error"},
    ns.unconvert: {"model": "similar"},
    ns.freeze_backbone: {"model": "similar", "norm": "eval", "train": None},
    ns.unfreeze_backbone: {"model": "similar"},
    ns.max_difference: {"model": "plain", "other": "similar", "example": "x"},
    ns.parameter_groups: {"model": "similar", "weight_decay": 0.1, "similarity_decay": 0.1},
    ns.penalty: {"model": "similar", "measure": "l1"},
    ns.orthogonality: {"layers": "sphere", "unit": True},
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
    ns.SphereLinear: {"in_features": 8, "num_classes": 3, "normalize": "both", "scale": 1.0},
    ns.LSTM: {"input_size": 8, "hidden_size": 4, "num_layers": 1, "similarity": "static-full"},
    ns.GlobalSimilarity: {"channels": 4, "size": (5, 6), "similarity": "static-diagonal"},
    ns.SelfAttention: {"channels": 4, "inner_channels": 2, "value_channels": 4},
    models.build: {"name": "cnn9", **SIZES},
}
"""They make modules, which are called."""
SPECS = {
    ns.Static: {"structure": ns.Full(), "init": "identity"},
    ns.Dynamic: {"structure": ns.Diagonal(), "predictor": ns.SphereNet(hidden=4)},
    ns.Affine: {"parts": ("angle",), "tied": False},
    ns.Dilation: {"structure": ns.Full(), "rate": 2},
    ns.Masked: {"structure": ns.Full(), "threshold": 0.5, "continuous": False, "rate": 1.0},
    ns.Sparse: {"structure": ns.Full(), "keep": 9},
    ns.Unshared: {"structure": ns.Full(), "channels": 2, "filters": None},
    ns.Full: {"residual": True},
    ns.SphereNet: {"hidden": 4, "last_kernel_size": 3, "resolution": 1, "scales": None, "k": 0.3},
    ns.CNN: {"hidden": 4, "resolution": 1, "per_image": False, "bound": "tanh"},
    ns.Shared: {"channels": 4, "hidden": 4, "share_adaptation": False},
}
"""They say what a layer's similarity is, which is made and called."""
CALLED = FUNCTIONS | LAYERS | SPECS
INPUTS = {ns.Conv1d: "line", ns.Conv3d: "space", ns.Linear: "features", ns.SphereLinear: "features"}
INPUTS |= {ns.LSTM: "line of features", models.build: "images"}


def layer_of(spec):
    """A layer with a structure, a predictor or a similarity."""
    if isinstance(spec, ns.SphereNet | ns.CNN | ns.Shared):
        spec = ns.Dynamic(ns.Diagonal(), predictor=spec)
    similarity = spec if isinstance(spec, ns.Static | ns.Dynamic) else ns.Static(spec)
    return ns.Conv2d(4, 4, 3, similarity=similarity)


def known_value(value, known):
    """A value, or the tensor or layer that it names."""
    return known[value] if isinstance(value, str) and value in known else value


def use(function, arguments, draw):
    """Call anything, and what it made with a tensor."""
    names = ("channels", "height", "width") if function is ns.macs else ()
    size = [arguments.pop(name) for name in names]
    with torch.random.fork_rng():
        made = function(*arguments.values(), *size) if size else function(**arguments)
        if function in SPECS:
            made = layer_of(made)
        if function in SPECS or function in LAYERS:
            made = made(draw(INPUTS.get(function, "x")))
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

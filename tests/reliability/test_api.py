"""Random calls of the functions and layers: each works, or says in its own words what does not fit.

What is refused is a ValueError, or TypeError and RuntimeError as of torch; an AttributeError, say,
comes from the depths.
"""

import collections
import os
import random
import resource
import traceback
import warnings

import pytest
import torch
from reliability.counts import record

import neural_similarity as ns
from neural_similarity import functional, models, regularize
from neural_similarity.nn import parse_similarity

CALLS = int(os.environ.get("RELIABILITY_CALLS", "5000"))
REFUSED = ValueError, TypeError, RuntimeError


def tensors():
    """By kind; new ones at every call, as the last ones may have been changed."""
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


ODD = [
    None, True, 0, 1, 2, 3, -1, 2**31, 2**70, 0.5, -0.5, float("nan"), float("inf"), 1j, "", "x",
    "same", "valid", "static-full", "dynamic-diagonal", "channels", b"x", (), (1, 2), (0, 0), (-1,),
    [1, "x"], ["x"], {}, {"x": 1}, {1}, object(), int, len, torch.float32, torch.device("meta"),
    ns.Diagonal(), ns.Full(), ns.Static(ns.Full()), ns.Dynamic(ns.Diagonal()), torch.nn.ReLU(),
    range(3), ("channels", 2), ("filters", 0), ("x", 1), (None, None), "zeros", "eager", "compiled",
]  # fmt: skip
WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
CONV = {"x": "x", "weight": "weight", "similarity": "m", "bias": None, **WINDOW}
LAYER = {"in_channels": 4, "out_channels": 3, "kernel_size": 3, **WINDOW, "padding_mode": "zeros"}
CALLED = {
    functional.similarity_conv1d: CONV | {"x": "line"},
    functional.similarity_conv2d: CONV | {"blocks": None, "backend": "auto"},
    functional.similarity_conv3d: CONV | {"x": "space"},
    functional.sphere_conv2d: {"x": "x", "weight": "weight", **WINDOW},
    functional.fold_kernel: {"weight": "weight", "similarity": "static"},
    functional.patch_norm: {"x": "x", "kernel_size": 3, **WINDOW},
    functional.global_similarity: {"x": "x"},
    functional.global_attention: {"x": "x"},
    **{
        layer: LAYER | {"similarity": "static-full"}
        for layer in (ns.Conv1d, ns.Conv2d, ns.Conv3d, ns.ConvTranspose2d, ns.SphereConv2d)
    },
    ns.Linear: {"in_features": 8, "out_features": 3, "similarity": None},
    ns.Static: {"structure": ns.Full()},
    ns.Dynamic: {"structure": ns.Diagonal(), "predictor": None},
    ns.convert: {"model": torch.nn.Conv2d(4, 3, 3), "similarity": "dynamic-diagonal"},
    ns.fold: {"model": torch.nn.Conv2d(4, 3, 3)},
    parse_similarity: {"text": "Dynamic(Diagonal())"},
    models.build: {"name": "cnn9", "num_classes": 3, "width": 0.1, "similarity": None},
    regularize.penalty: {"model": torch.nn.Conv2d(4, 3, 3)},
}


def drawn(chance, value, known):
    """A value, or now and then an odd one, or any tensor."""
    if chance.random() < 0.3:
        value = chance.choice([*ODD, *known])
    return known[value] if isinstance(value, str) and value in known else value


def called(chance):
    """Call anything, and what it made with a tensor; the words of its refusal, or None."""
    known, function = tensors(), chance.choice(list(CALLED))
    arguments = {name: drawn(chance, value, known) for name, value in CALLED[function].items()}
    dropped = chance.choice([None, None, None, *arguments])
    arguments.pop(dropped, None)
    made = function(**arguments)
    if isinstance(made, torch.nn.Module):
        with torch.random.fork_rng():
            made(drawn(chance, "x", known))
    elif isinstance(made, torch.Tensor) and made.requires_grad:
        made.sum().backward()


@pytest.fixture
def bounded():
    """What asks for more memory gets none, as it would on a smaller machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
def test_random_calls_of_the_api():
    chance, outcomes, deep = random.Random(2019), collections.Counter(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(CALLS):
            try:
                called(chance)
                outcomes["worked"] += 1
            except REFUSED:
                outcomes["refused"] += 1
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                where = [f"{f.filename.split('/')[-1]}:{f.lineno}" for f in frames[-3:]]
                deep[f"{error!r:.120} at {' < '.join(where[::-1])}"] = error
                outcomes["deep"] += 1
    record("calls of the API", tried=CALLS, refused=outcomes["refused"], errors=outcomes["deep"])
    assert not deep, "\n".join(deep)

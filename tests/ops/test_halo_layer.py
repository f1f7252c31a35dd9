"""A layer with its predictor by two halo kernels, which an emulator runs."""

from copy import deepcopy

import pytest
import torch
from emulated_halo import Emulator, needs_gxx
from moved import moved
from on_gpu import on_gpu

import neural_similarity as ns
from neural_similarity.nn.standard import standard_parts
from neural_similarity.ops import halo, layer
from neural_similarity.ops.halo import launch, trial
from neural_similarity.ops.operands import Operands

HALF = torch.bfloat16


def similarity_layer(channels, outputs, dtype=HALF, **options):
    spec = ns.Dynamic(predictor=ns.SphereNet(hidden=32, **options))
    torch.manual_seed(0)
    conv = ns.Conv2d(channels, outputs, 3, padding=1, similarity=spec)
    return moved(conv).to(dtype, memory_format=torch.channels_last)


def inputs(channels, outputs, size):
    x, grad = (torch.randn(2, count, *size, dtype=HALF) for count in (channels, outputs))
    return tuple(t.to(memory_format=torch.channels_last) for t in (x, grad))


def results(conv, x, grad):
    x = x.detach().requires_grad_()
    y = conv(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *conv.parameters()], grad)]


@pytest.fixture
def kernels(monkeypatch, tmp_path, request):
    """A function after which a CPU takes the layer's kernels; it returns those launched."""
    emulator, launched = Emulator(tmp_path), []

    def launch_kernel(name, *rest):
        launched.append(name)
        emulator(name, *rest)

    def take():
        request.getfixturevalue("taken")
        monkeypatch.setattr(layer, "by_kernels", lambda _: True)
        monkeypatch.setattr(trial, "find_predictor_fault", lambda *_: None)
        monkeypatch.setattr(launch, "launch_kernel", launch_kernel)
        return launched

    return take


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize(("channels", "outputs", "size"), [(32, 64, (9, 12)), (64, 32, (8, 7))])
def test_a_layer_is_two_launches_and_right(channels, outputs, size, kernels):
    conv = similarity_layer(channels, outputs)
    x, grad = inputs(channels, outputs, size)
    parts = results(conv, x, grad)
    truth = results(deepcopy(conv).double(), x.double(), grad.double())
    launched = kernels()
    ours = results(conv, x, grad)
    assert launched == ["hidden", "predicted", "gradients", "weight_gradient"]
    for found, true, other in zip(ours, truth, parts, strict=True):
        assert found.dtype == HALF
        limit = max(2 * float((other - true).norm()), 2**-7 * float(true.norm()))
        assert float((found - true).norm()) <= limit


def test_shapes_without_data_are_those_of_the_kernels(kernels, monkeypatch):
    kernels()
    monkeypatch.setattr(launch, "launch_kernel", lambda *_: None)
    conv = similarity_layer(32, 64)
    x, _ = inputs(32, 64, (4, 5))
    given, frame = layer_parts(conv, x), conv.similarity.frame
    run = [layer._halo_output(given, frame, runs=runs) for runs in (True, False)]
    for one, other in zip(*run, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def layer_parts(conv, x):
    return standard_parts(conv.similarity, x, conv.weight, conv.bias)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"window": halo.WINDOW._replace(stride=(2, 2))}, "a window is not 3×3"),
        ({"groups": 2}, "in groups"),
        ({"full": True}, "M is full"),
        ({"first": torch.zeros(128, 32, 3, 3)}, "128 hidden ones are none of (32, 64)"),
        ({"last": torch.zeros(9, 32, 1, 1)}, "a window is not 3×3"),
    ],
)
@pytest.mark.usefixtures("switched")
def test_reasons_of_a_layer(change, reason, monkeypatch):
    monkeypatch.setattr(trial, "find_predictor_fault", lambda *_: None)
    x, _ = inputs(32, 64, (4, 5))
    weight, first = torch.zeros(64, 32, 3, 3), torch.zeros(32, 32, 3, 3)
    parts = {"first": first, "last": torch.zeros(9, 32, 3, 3), "full": False}
    given = Operands(on_gpu(x), weight, x, halo.WINDOW, 1)
    given = given._replace(**{k: v for k, v in change.items() if k not in parts})
    parts.update({k: v for k, v in change.items() if k in parts})
    found = halo.declines_predictor(given, **parts)
    assert found is None if reason is None else reason in found

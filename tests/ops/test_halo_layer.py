"""A layer with its predictor by halo kernels, two forward and five backward, in an emulator."""

import re
import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from emulated_halo import Emulator, needs_gxx
from moved import moved
from on_gpu import on_gpu
from torch.utils._python_dispatch import TorchDispatchMode

import neural_similarity as ns
from neural_similarity.nn.standard import standard_parts
from neural_similarity.ops import halo, layer
from neural_similarity.ops.halo import driver, launch, trial
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


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def kernels(monkeypatch, emulator, request):
    """A function after which a CPU takes the layer's kernels; it returns those launched."""
    launched = []

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


FORWARD = ["hidden", "predicted"]
BACKWARD = [
    *("gradients", "hidden_gradient", "input_gradient"),
    *("layer_weight_gradients", "weight_sums"),
]


def check_results(ours, truth, parts):
    for found, true, other in zip(ours, truth, parts, strict=True):
        assert found.dtype == HALF
        limit = max(2 * float((other - true).norm()), 2**-7 * float(true.norm()))
        assert float((found - true).norm()) <= limit


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize(
    ("channels", "outputs", "size"), [(32, 64, (9, 12)), (64, 32, (8, 7)), (128, 32, (7, 9))]
)
def test_a_layer_is_seven_launches_and_right(channels, outputs, size, kernels):
    conv = similarity_layer(channels, outputs)
    x, grad = inputs(channels, outputs, size)
    parts = results(conv, x, grad)
    truth = results(deepcopy(conv).double(), x.double(), grad.double())
    launched = kernels()
    check_results(results(conv, x, grad), truth, parts)
    assert launched == FORWARD + BACKWARD


NEEDS = {
    "W is frozen": (r"^weight", [*BACKWARD]),
    "the predictor is frozen": (r"predictor|gain", [*BACKWARD]),
    "all but W is frozen": (r"^(?!weight)", ["layer_weight_gradients", "weight_sums"]),
    "x needs none": (r"^x$", [name for name in BACKWARD if name != "input_gradient"]),
}


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize(("frozen", "expected"), NEEDS.values(), ids=NEEDS)
def test_what_needs_no_gradient_is_left_out(frozen, expected, kernels):
    conv = similarity_layer(32, 32)
    named = {"x": inputs(32, 32, (5, 6))[0], **dict(conv.named_parameters())}
    for name, tensor in named.items():
        tensor.requires_grad_(not re.search(frozen, name))
    wanted = [tensor for tensor in named.values() if tensor.requires_grad]
    truth = torch.autograd.grad(conv(named["x"]).float().square().sum(), wanted)
    launched = kernels()
    found = torch.autograd.grad(conv(named["x"]).float().square().sum(), wanted)
    assert launched == FORWARD + expected
    for one, true in zip(found, truth, strict=True):
        assert float((one - true).norm()) <= 2**-5 * float(true.norm())


class Launches(TorchDispatchMode):
    """Torch's operations that launch a kernel on a GPU: all but views and memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        schema = operation._schema
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if not (views or "empty" in schema.name or schema.name == "aten::detach"):
            self.names.append(schema.name)
        return operation(*args, **(kwargs or {}))


def reference_passes(kernels, monkeypatch, bias):
    """Launches of a layer forward, and backward, with each kernel's bytes; of 64 channels at 32×32.

    Every tensor counts once, and twice where it is read and written; parts of sums count too.
    """
    launched, moved_bytes = kernels(), {}

    def launch_kernel(name, *words):
        launched.append(name)
        tensors = [one for one in words[-1] if isinstance(one, torch.Tensor)]
        twice = tensors[-1].nbytes if name == "input_gradient" else 0  # the gradient of x
        moved_bytes[name] = sum(one.nbytes for one in tensors) + twice

    monkeypatch.setattr(launch, "launch_kernel", launch_kernel)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: H100)
    conv = ns.Conv2d(64, 64, 3, padding=1, bias=bias, similarity="dynamic-diagonal")
    given = layer_parts(conv.to("meta", HALF, memory_format=torch.channels_last), REFERENCE)
    frame = conv.similarity.frame
    with Launches() as forward:
        y, *kept = layer._output(given, frame, layer._WAYS[False])
    count = len(launched)
    with Launches() as backward:
        needs = tuple(one is not None for one in given)
        layer._gradients(y, given, layer.Kept(*kept), frame, needs, layer._WAYS[False])
    passes = launched[:count] + forward.names, launched[count:] + backward.names
    return *passes, sum(moved_bytes[name] for name in launched[count:])


H100 = SimpleNamespace(multi_processor_count=132)
REFERENCE = torch.empty(128, 64, 32, 32, dtype=HALF, device="meta").to(
    memory_format=torch.channels_last
)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_two_launches_forward_and_at_most_seven_backward(bias, kernels, monkeypatch):
    forward, backward, moved_bytes = reference_passes(kernels, monkeypatch, bias)
    assert forward == FORWARD
    assert backward == [*BACKWARD, *["aten::sum"] * bias]
    assert len(backward) <= 7
    assert moved_bytes <= 280e6


@pytest.mark.usefixtures("taken")
def test_python_calls(monkeypatch):
    """What the host does in a layer's step, with a driver that does nothing."""
    found = []
    for name in ("_load_context", "_load_function", "_call_driver"):
        monkeypatch.setattr(driver, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(layer, "by_kernels", lambda _: True)
    conv, (x, grad) = similarity_layer(32, 32), inputs(32, 32, (4, 5))
    results(conv, x, grad)
    sys.setprofile(lambda frame, event, _: found.append(frame) if event == "call" else None)
    try:
        results(conv, x, grad)
    finally:
        sys.setprofile(None)
    own = [frame for frame in found if "neural_similarity" in frame.f_code.co_filename]
    assert len(own) <= 246


@pytest.mark.parametrize("half_gain", [False, True])
def test_shapes_without_data_are_those_of_the_kernels(half_gain, kernels, monkeypatch):
    kernels()
    monkeypatch.setattr(launch, "launch_kernel", lambda *_: None)
    conv = similarity_layer(32, 64)
    if not half_gain:
        conv.similarity.gain.data = conv.similarity.gain.data.float()
    x, grad = inputs(32, 64, (4, 5))
    given, frame = layer_parts(conv, x), conv.similarity.frame
    runs = []
    for way in (layer._WAYS[False], layer._shapes):
        y, *kept = layer._output(given, frame, way)
        found = layer._gradients(grad, given, layer.Kept(*kept), frame, [True] * 7, way)
        runs.append([y, *kept, *found])
    for one, other in zip(*runs, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def layer_parts(conv, x):
    m = conv.similarity
    operands = x, conv.weight, conv.bias
    return standard_parts(m.frame, m.spec.predictor, m.predictor, m.gain, operands)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"window": halo.WINDOW._replace(stride=(2, 2))}, "a window is not 3×3"),
        ({"groups": 2}, "in groups"),
        ({"full": True}, "M is full"),
        ({"first": torch.zeros(128, 32, 3, 3)}, "128 hidden channels, none of (32, 64)"),
        ({"weight": torch.zeros(48, 32, 3, 3)}, "48 outputs are none of (32, 64, 128, 256)"),
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

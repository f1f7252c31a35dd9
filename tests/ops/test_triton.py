"""The Triton kernels: interpreted, compiled without a GPU, and on one where there is one."""

import sys
from copy import deepcopy
from importlib.util import find_spec

import pytest
import torch
from kernel_laws import CASES, KINDS, LARGE, Case, auto_backend, check
from on_gpu import on_gpu
from pointwise_laws import LAWS, MAPS, check_second_derivatives
from problems import Problem
from processes import run_tests

from benchmarks.compare import without_tf32
from neural_similarity.nn import Conv2d
from neural_similarity.ops import declines, triton

X = torch.zeros(1, 2, 4, 4)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def gpu(test):
    """Marks a test that needs a GPU which the kernels take."""
    there = torch.cuda.is_available()
    reason = declines("triton", X.cuda(), 9) if there else "torch finds no GPU here"
    return pytest.mark.gpu(pytest.mark.skipif(reason is not None, reason=str(reason))(test))


@pytest.fixture(autouse=True)
def _without_tf32():
    with without_tf32():
        yield


@pytest.mark.long
@needs_triton
def test_interpreted_kernels():
    run_tests("interpreted_kernels.py", {"TRITON_INTERPRET": "1"})


@needs_triton
@pytest.mark.slow
def test_interpreted_kernels_on_larger_problems():
    run_tests("interpreted_kernels.py", {"TRITON_INTERPRET": "1"}, "-m", "slow")


@pytest.mark.long
@needs_triton
def test_kernels_compile_for_hopper(tmp_path):
    run_tests("compiled_kernels.py", {"TRITON_CACHE_DIR": str(tmp_path)}, "--noconftest")


@needs_triton
@pytest.mark.slow
def test_all_kernels_compile_for_hopper(tmp_path):
    options = ("--noconftest", "-m", "slow")
    run_tests("compiled_kernels.py", {"TRITON_CACHE_DIR": str(tmp_path)}, *options)


@pytest.mark.parametrize(
    ("x", "taps", "reason"),
    [
        (X, 9, "the input is on cpu, not on a GPU"),
        (on_gpu(X.double()), 9, "float64, not float32, float16 or bfloat16"),
        (on_gpu(X[None]), 9, "has 3 spatial dimensions, more than 2"),
        (on_gpu(X), 81, "has 81 taps, more than 64"),
    ],
)
def test_it_says_why_it_declines(x, taps, reason):
    assert reason in declines("triton", x, taps)
    assert auto_backend(x, taps) != "triton"


class Gpu:
    """Stands for a GPU that nothing has tried yet, and counts what it is asked."""

    def __init__(self, monkeypatch):
        self.capability, self.capturing, self.fails, self.asked = (9, 0), False, None, []
        monkeypatch.setattr(triton, "_FAULTS", {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", self.get_device_capability)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        if find_spec("triton"):
            from neural_similarity.ops.triton import trial

            monkeypatch.setattr(trial, "launch_empty", self.launch)

    def get_device_capability(self, _device):
        self.asked.append("capability")
        return self.capability

    def launch(self, _device):
        self.asked.append("launch")
        if self.fails:
            raise self.fails


@pytest.fixture
def untried(monkeypatch):
    return Gpu(monkeypatch)


def test_without_triton_and_on_old_gpus_eager_runs(monkeypatch, untried):
    untried.capability = (7, 5)
    if find_spec("triton"):
        assert declines("triton", on_gpu(X), 9) == "the GPU's compute capability is below 8.0"
    monkeypatch.setattr(triton, "find_spec", lambda _: None)
    assert declines("triton", on_gpu(X), 9) == "triton is not installed"
    assert auto_backend(on_gpu(X)) == "eager"


@needs_triton
def test_auto_takes_it_on_a_gpu_that_is_tried_once(untried):
    for _ in range(3):
        assert declines("triton", on_gpu(X), 9) is None
        assert auto_backend(on_gpu(X)) == "triton"
    assert untried.asked == ["capability", "launch"]


@needs_triton
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("No C compiler.\nMore"), "RuntimeError: No C compiler."),
        (AssertionError("libcuda.so cannot found!\n"), "AssertionError: libcuda.so cannot found!"),
        (OSError(""), "OSError"),
    ],
)
def test_where_the_smallest_kernel_fails_eager_runs(untried, error, reason):
    untried.fails = error
    for _ in range(2):
        assert declines("triton", on_gpu(X), 9) == f"triton does not run here: {reason}"
        assert auto_backend(on_gpu(X)) == "eager"
    assert untried.asked == ["capability", "launch"]


@needs_triton
@pytest.mark.usefixtures("untried")
def test_a_broken_package_is_a_reason(monkeypatch):
    monkeypatch.delattr(triton, "trial")
    monkeypatch.delitem(sys.modules, "neural_similarity.ops.triton.trial")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(triton, "find_spec", lambda _: "there")
    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    reason = declines("triton", on_gpu(X), 9)
    assert reason.startswith("triton does not run here: ModuleNotFoundError: import of triton")


@needs_triton
def test_a_capture_is_not_disturbed_and_knows_what_was_found_before(untried):
    untried.capturing, untried.fails = True, RuntimeError("no")
    assert declines("triton", on_gpu(X), 9) is None
    assert not untried.asked
    for capturing in (False, True):
        untried.capturing = capturing
        assert auto_backend(on_gpu(X)) == "eager"
    assert untried.asked == ["capability", "launch"]


@needs_triton
def test_a_trace_holds_what_was_found_before_and_nothing_of_the_search(untried):
    gpu = torch.device("cuda", 0)
    untried.fails = RuntimeError("no")

    def traced(x):
        return x + 1 if triton._gpu_fault(gpu) is None else x - 1

    for expected in (X + 1, X - 1):
        torch._dynamo.reset()
        compiled = torch.compile(traced, fullgraph=True, backend="eager")
        assert torch.equal(compiled(X), expected)
        triton._gpu_fault(gpu)
    assert untried.asked == ["capability", "launch"]


WIDE = Case(Problem("wide", channels=(96, 160), size=(33, 31), batch=5))


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [*CASES, *LARGE, WIDE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu(case, kind, dtype):
    check(case, kind, dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tuned_on_a_gpu(kind, dtype):
    torch.use_deterministic_algorithms(False)
    check(WIDE, kind, dtype, "cuda")


@gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_are_bit_equal(kind, dtype, deterministic):
    torch.use_deterministic_algorithms(deterministic)
    operands = WIDE.operands(kind)
    outgoing = torch.randn_like(WIDE(*operands, backend="reference"))
    one, two = (WIDE.results(operands, outgoing, dtype, "triton", "cuda") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("maps", MAPS, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_pointwise_parts_on_a_gpu(law, maps, dtype):
    LAWS[law](maps, dtype, "cuda")


@gpu
def test_second_derivatives_of_pointwise_parts_on_a_gpu():
    check_second_derivatives("cuda")


@gpu
@pytest.mark.parametrize("similarity", ["dynamic-diagonal", "dynamic-full"])
def test_a_layer_on_a_gpu_is_that_on_a_cpu(similarity):
    layer = Conv2d(20, 36, 3, padding=1, stride=2, similarity=similarity)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(3, 20, 9, 8, requires_grad=True)
    found = []
    for device in ("cpu", "cuda"):
        there = deepcopy(layer).to(device)
        mine = x.detach().to(device).requires_grad_()
        y = there(mine)
        found.append([y, *torch.autograd.grad(y.pow(2).sum(), [mine, *there.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-3, atol=1e-3)


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_replays_it(kind):
    torch.use_deterministic_algorithms(False)
    operands = [t.bfloat16().cuda() for t in WIDE.operands(kind)]
    operands[2] = operands[2].float()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = WIDE(*operands, backend="triton")
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = WIDE(*operands, backend="triton")
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)

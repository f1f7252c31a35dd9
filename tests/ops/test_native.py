"""The compiled operators compute what the plain ones do."""

import ctypes
import platform
from functools import cache

import pytest
import torch
from against_float64 import error
from kernel_laws import Case, auto_backend, check
from problems import KINDS, PROBLEMS, Problem
from torch.testing import assert_close

from neural_similarity.functional import similarity_conv3d
from neural_similarity.ops import declines, native
from neural_similarity.ops.native import NARROW, compiling

both_kinds = pytest.mark.parametrize("kind", KINDS)
X = torch.zeros(1, 2, 4, 4)


@pytest.fixture(autouse=True)
def _compiled(request):
    reason = declines("compiled", X, 9)
    if reason and "without" not in request.node.name:
        pytest.skip(reason)


FLOATS = torch.float32, torch.bfloat16
WIDTHS = [
    Case(Problem(f"wide-{channels}", channels=channels, size=(5, 6)), layout="contiguous")
    for channels in ((32, 16), (64, 8), (50, 3), (16, 1), (8, 8), (16, 16))
]
BLOCKS = [
    (Case(Problem("blocks", channels=channels, groups=2), ("channels", count)), dtype)
    for channels, count, dtype in (
        ((24, 6), 3, torch.float32),
        ((24, 6), 4, torch.float32),
        ((64, 64), 1, torch.bfloat16),
        ((128, 64), 2, torch.bfloat16),
        ((128, 64), 4, torch.bfloat16),
    )
]
LAYOUTS = [
    Case(Problem(layout, channels=(16, 8), size=(7, 6), batch=3), layout=layout)
    for layout in ("channels_last", "strided", "expanded")
]
ACROSS = [
    Case(Problem(f"across-images-{c}-{o}", stride=(2, 1), channels=(c, o), size=(23, 13), batch=5))
    for c, o in ((5, 150), (32, 160))
]
"""Positions of four images at a time, then of one, and pieces that begin within an image."""
GROUPED = [
    Case(Problem(f"groups-{each}-{groups}", kernel, stride=stride, channels=(each * groups,) * 2,
                 groups=groups, size=(9, 6), batch=2))
    for each, groups, kernel, stride in (
        (1, 70, (3, 3), (1, 1)), (1, 5, (5, 4), (2, 1)), (2, 9, (3, 3), (1, 2)),
        (4, 6, (1, 3), (1, 1)), (8, 3, (3, 3), (1, 1)), (16, 3, (2, 3), (2, 2)),
    )
]  # fmt: skip
"""Groups that are taken together: several vectors of channels, and parts of one."""
NARROW_ROWS = [
    Case(Problem(f"rows-{c}-{kernel}", kernel, stride, padding, channels=(c, 20), size=(13, 15)))
    for c, kernel, stride, padding in (
        (3, (7, 7), (2, 2), (3, 3)), (8, (2, 8), (1, 3), (1, 5)), (5, (1, 5), (1, 1), (0, 4)),
    )
]  # fmt: skip
"""What a kernel row sees is read at once; rows reach over both borders."""
LARGE = Case(Problem("large", channels=(400, 320), size=(13, 13)))
"""A kernel for which more positions are taken together: here two chunks."""
LINE = Case(Problem("line", (1, 4), size=(1, 9), padding=(0, 0), groups=2), line=True)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((Case(problem, layout="contiguous"), torch.float32) for problem in PROBLEMS),
        *((case, dtype) for case in WIDTHS for dtype in FLOATS),
        *((case, torch.float32) for case in (*LAYOUTS, LINE)),
        *((case, dtype) for case in (*ACROSS, *GROUPED, *NARROW_ROWS) for dtype in FLOATS),
        *(pytest.param(LARGE, dtype, marks=pytest.mark.long) for dtype in FLOATS),
        *BLOCKS,
    ],
    ids=str,
)
@both_kinds
def test_errors_are_at_most_twice_those_of_the_eager_form(case, dtype, kind):
    check(case, kind, dtype, backend="compiled")


@pytest.fixture
def _memory_is_not_zero():
    """glibc fills what it hands out."""
    perturb = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
    perturb(-6, 165)
    yield
    perturb(-6, 0)


@both_kinds
def test_three_dimensions(kind):
    operands = torch.randn(2, 4, 3, 5, 4), torch.randn(6, 2, 2, 1, 3)
    m = torch.randn(2, *[6] * (1 + (kind == "full")), 2, 5, 2)
    results = []
    for backend, dtype in (("compiled", torch.float32), ("reference", torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (*operands, m)]
        y = similarity_conv3d(*leaves, groups=2, backend=backend)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for ours, right in zip(*results, strict=True):
        assert error(ours, right) < 1e-5


@pytest.mark.parametrize(
    ("batch", "groups", "filters"), [(5, 1, 20), (2, 1, 20), (1, 1, 20), (1, 1, 16), (1, 16, 16)]
)
@pytest.mark.usefixtures("_memory_is_not_zero")
def test_threads_share_the_work(batch, groups, filters, monkeypatch):
    """Images, or the positions of one; a thread may have none."""
    case = Case(Problem("threads", channels=(16, filters), batch=batch, groups=groups))
    operands = case.operands("full")
    outgoing = torch.randn_like(case(*operands, backend="reference"))

    def found():
        return case.results(operands, outgoing, torch.float32, "compiled")

    one = found()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = found()
    assert_close(three, one, rtol=1e-5, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(three, found(), strict=True))


@pytest.mark.parametrize(
    ("x", "taps", "reason"),
    [
        (X.double(), 9, "float64, neither float32 nor bfloat16"),
        (X.to("meta"), 9, "is on meta, not on the CPU"),
        (X, 81, "has 81 taps, more than 64"),
    ],
)
def test_it_says_why_it_declines(x, taps, reason):
    assert reason in declines("compiled", x, taps)


SWITCHES = ["-mno-amx-bf16", "-mno-avx512bf16", "-mno-avx512f", "-mno-avx"]


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the switches are those of x86")
@pytest.mark.parametrize("without", SWITCHES)
def test_lesser_processors(without, monkeypatch, tmp_path):
    """Vectors of 16, 8 and 4 numbers."""
    monkeypatch.setattr(native, "load_library", cache(compiling.load_library.__wrapped__))
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    used = SWITCHES[: SWITCHES.index(without) + 1]
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *used))
    for dtype in FLOATS:
        for kind in KINDS:
            check(WIDTHS[2], kind, dtype, backend="compiled")


@pytest.mark.parametrize(
    ("channels", "groups", "backend"),
    [(NARROW - 1, 1, "compiled"), (2 * NARROW, 2, "compiled"), (2 * (NARROW - 1), 2, "eager")],
)
def test_narrow_groups_run_eagerly_unless_taken_together(channels, groups, backend):
    """One group of few channels is no slower in C; here are twice as many filters as channels."""
    x = torch.zeros(1, channels, 4, 4)
    assert auto_backend(x, filters=2 * channels, groups=groups) == backend
    square = torch.zeros(1, 2 * groups, 4, 4)
    assert auto_backend(square, filters=2 * groups, groups=groups) == "compiled"


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "blocks", "together"),
    [
        (6, 6, 6, None, True),
        (12, 12, 3, None, True),
        (12, 12, 4, None, False),
        (6, 12, 6, None, False),
        (64, 64, 2, None, False),
        (6, 6, 1, None, False),
        (6, 6, 6, ("channels", 2), False),
        (24, 24, 6, ("channels", 1), True),
    ],
)
def test_square_groups_are_one_call(channels, filters, groups, blocks, together, monkeypatch):
    """Groups of 1, 2, 4, 8 or 16 channels; calls of C are counted."""
    calls = []
    monkeypatch.setattr(native.Group, "call_native", lambda _, name, *__: calls.append(name))
    problem = Problem("calls", channels=(channels, filters), groups=groups)
    case = Case(problem, blocks)
    case(*(t.float() for t in case.operands("diagonal")), backend="compiled")
    assert len(calls) == (1 if together else groups)

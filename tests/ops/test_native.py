"""The compiled operators compute what the plain ones do."""

import platform
from functools import cache

import pytest
import torch
from against_float64 import error
from problems import KINDS, PROBLEMS, Problem, ids
from torch.testing import assert_close

from neural_similarity.functional import (
    similarity_conv1d,
    similarity_conv2d,
    similarity_conv3d,
)
from neural_similarity.ops import declines, native
from neural_similarity.ops.backend import NARROW, chosen
from neural_similarity.ops.native import compiling

both_kinds = pytest.mark.parametrize("kind", KINDS)
X = torch.zeros(1, 2, 4, 4)


@pytest.fixture(autouse=True)
def _compiled(request):
    reason = declines("compiled", X, 9)
    if reason and "without" not in request.node.name:
        pytest.skip(reason)


def gradients(f, operands, outgoing, dtype, backend):
    """Output and gradients of `f` with x and weight in `dtype`."""
    x, weight, m = operands
    copies = [x.to(dtype), weight.to(dtype), m.float() if dtype != torch.float64 else m]
    copies = [t.detach().clone().requires_grad_() for t in copies]
    y = f(*copies, backend=backend)
    return [y, *torch.autograd.grad(y, copies, outgoing.to(dtype))]


def compare(f, operands, dtype=torch.float32):
    """Errors at most twice those of the eager form, or of float32's rounding."""
    y = f(*operands)
    outgoing = torch.randn_like(y)
    truth = gradients(f, operands, outgoing, torch.float64, "reference")
    eager = gradients(f, operands, outgoing, dtype, "eager")
    ours = gradients(f, operands, outgoing, dtype, "compiled")
    for name, a, e, t in zip(("y", "x", "weight", "m"), ours, eager, truth, strict=True):
        assert a.dtype == e.dtype
        limit = 2 * (e - t).abs().max() if t.numel() else 0
        scale = t.abs().max() if t.numel() else 0
        assert not t.numel() or (a - t).abs().max() <= max(limit, 1e-5 * scale), name
        assert a.stride() == e.stride(), name


@pytest.mark.parametrize("problem", PROBLEMS, ids=ids)
@both_kinds
def test_forward_and_gradients(problem, kind):
    operands = (*problem.operands(), problem.similarity(kind))

    def f(*operands, backend="reference"):
        return similarity_conv2d(*operands, None, *problem.geometry, backend=backend)

    compare(f, operands)


@pytest.mark.parametrize("channels", [(32, 16), (64, 8), (50, 3), (16, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@both_kinds
def test_widths_and_precisions(channels, dtype, kind):
    problem = Problem("wide", channels=channels, size=(5, 6))
    operands = (*problem.operands(), 1 + 0.3 * problem.similarity(kind))

    def f(*operands, backend="reference"):
        return similarity_conv2d(*operands, None, *problem.geometry, backend=backend)

    compare(f, operands, dtype)


@pytest.mark.parametrize(
    ("f", "size", "kernel"),
    [(similarity_conv1d, (9,), (4,)), (similarity_conv3d, (3, 5, 4), (2, 1, 3))],
)
@both_kinds
def test_other_dimensions(f, size, kernel, kind):
    x, weight = torch.randn(2, 4, *size).double(), torch.randn(6, 2, *kernel).double()
    output = [s - k + 1 for s, k in zip(size, kernel, strict=True)]
    taps = weight[0, 0].numel()
    m = torch.randn(2, *[taps] * (1 + (kind == "full")), *output).double()

    def grouped(*operands, backend="reference"):
        return f(*operands, groups=2, backend=backend)

    compare(grouped, (x, weight, m))


@pytest.mark.parametrize(
    ("channels", "count", "dtype"),
    [
        ((24, 6), 3, torch.float32),
        ((24, 6), 4, torch.float32),
        ((64, 64), 1, torch.bfloat16),
        ((128, 64), 2, torch.bfloat16),
        ((128, 64), 4, torch.bfloat16),
    ],
)
@both_kinds
def test_blocks_of_channels(kind, channels, count, dtype):
    problem = Problem("blocks", channels=channels, groups=2)
    m = torch.stack([1 + 0.3 * problem.similarity(kind) for _ in range(count)], 1)

    def f(*operands, backend="reference"):
        return similarity_conv2d(
            *operands, None, *problem.geometry, blocks=("channels", count), backend=backend
        )

    compare(f, (*problem.operands(), m), dtype)


@pytest.mark.parametrize("stride", [1, 2])
@both_kinds
def test_large_images_are_taken_by_rows(stride, kind, monkeypatch):
    problem = Problem("rows", stride=(stride, 1), dilation=(2, 1), size=(13, 9), batch=3)
    operands = (*problem.operands(torch.float32), problem.similarity(kind, torch.float32))

    def f(*operands, backend="reference"):
        return similarity_conv2d(*operands, None, *problem.geometry, backend=backend)

    outgoing = torch.randn_like(f(*operands))
    whole = gradients(f, operands, outgoing, torch.float32, "eager")
    for limit in ("COLUMN_BYTES", "PRODUCT_BYTES"):
        monkeypatch.setattr(f"neural_similarity.ops.columns.{limit}", 3 * 9 * 9 * 4 * 4)
    found = gradients(f, operands, outgoing, torch.float32, "eager")
    assert_close(found, whole, rtol=1e-5, atol=1e-4)


def test_threads_share_the_work(monkeypatch):
    problem = Problem("threads", channels=(16, 8), batch=5)
    operands = (*problem.operands(torch.float32), problem.similarity("full", torch.float32))

    def f(*operands, backend="reference"):
        return similarity_conv2d(*operands, None, *problem.geometry, backend=backend)

    outgoing = torch.randn_like(f(*operands))
    one = gradients(f, operands, outgoing, torch.float32, "compiled")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = gradients(f, operands, outgoing, torch.float32, "compiled")
    assert_close(three, one, rtol=1e-5, atol=1e-4)
    again = gradients(f, operands, outgoing, torch.float32, "compiled")
    assert all(torch.equal(a, b) for a, b in zip(three, again, strict=True))


def test_not_a_number_stays_one():
    x = torch.full((1, 32, 3, 3), float("nan"), dtype=torch.bfloat16)
    weight, m = torch.ones(1, 32, 1, 1, dtype=torch.bfloat16), torch.ones(1, 1, 3, 3)
    assert similarity_conv2d(x, weight, m, backend="compiled").isnan().all()


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


def test_a_refusal_names_the_backend_and_the_reason():
    with pytest.raises(ValueError, match=r"the compiled backend declines .*float64, neither"):
        similarity_conv2d(X.double(), X.double(), torch.ones(1, 16, 1, 1), backend="compiled")


LAYOUTS = ["channels last", "strided", "expanded"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts_against_float64(layout, kind):
    problem = Problem("layouts", channels=(16, 8), size=(7, 6), batch=3)
    x, weight = problem.operands(torch.float32)
    m = problem.similarity(kind, torch.float32)
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
        m = m.movedim(1, -1).contiguous().movedim(-1, 1)
    elif layout == "strided":
        x, m = x.repeat_interleave(2, 3)[..., ::2], m.repeat_interleave(2, 0)[::2]
    else:
        x, m = x[:1].expand_as(x), m[:1].expand_as(m)

    def outcome(operands, backend):
        leaves = [t.requires_grad_() for t in operands]
        y = similarity_conv2d(*leaves, padding=1, backend=backend)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    found = outcome([t.detach() for t in (x, weight, m)], "compiled")
    exact = outcome([t.double().contiguous() for t in (x, weight, m)], "reference")
    for ours, theirs in zip(found, exact, strict=True):
        assert error(ours, theirs) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the switches are those of x86")
@pytest.mark.parametrize("without", ["-mno-amx-bf16", "-mno-avx512bf16", "-mno-avx512f"])
def test_lesser_processors(without, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "library", cache(compiling.library.__wrapped__))
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    switches = ["-mno-amx-bf16", "-mno-avx512bf16", "-mno-avx512f"]
    used = switches[: switches.index(without) + 1]
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *used))
    for dtype in (torch.float32, torch.bfloat16):
        for kind in KINDS:
            test_widths_and_precisions((50, 3), dtype, kind)


@pytest.mark.parametrize(
    ("channels", "groups", "backend"),
    [
        (NARROW - 1, 1, "compiled"),
        (2 * NARROW, 2, "compiled"),
        (2 * (NARROW - 1), 2, "eager"),
        (8, 8, "eager"),
    ],
)
def test_narrow_groups_run_eagerly(channels, groups, backend):
    """Depthwise kernels are faster in the eager form; one group of few channels is not."""
    assert chosen("auto", torch.zeros(1, channels, 4, 4), 9, groups) == backend

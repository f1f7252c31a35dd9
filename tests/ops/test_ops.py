"""What the operators compute, against independent oracles."""

import re
from itertools import product

import pytest
import torch
from problems import KINDS, PROBLEMS, Problem, by_hand, ids, of_kind
from refusals import refusals
from torch.nn import functional as F
from torch.testing import assert_close
from torchvision.ops import deform_conv2d

from neural_similarity.functional import (
    fold_kernel,
    similarity_conv1d,
    similarity_conv2d,
    similarity_conv3d,
)
from neural_similarity.ops.backend import BACKENDS, ENTRIES

everywhere = pytest.mark.parametrize("problem", PROBLEMS, ids=ids)
both_kinds = pytest.mark.parametrize("kind", KINDS)
both_backends = pytest.mark.parametrize("backend", ["eager", "reference"])


@everywhere
@both_kinds
@both_backends
def test_dynamic_is_unfold_and_einsum(problem, kind, backend):
    x, weight = problem.operands()
    m = problem.similarity(kind)
    y = similarity_conv2d(x, weight, m, None, *problem.geometry, backend=backend)
    assert_close(y.flatten(2), by_hand(x, weight, m, *problem.geometry))


OTHER_DIMENSIONS = [
    (similarity_conv1d, (2, 4, 11), (6, 4, 3), (1, "same", 1, 1)),
    (similarity_conv1d, (2, 4, 11), (6, 2, 3), (2, 3, 2, 2)),
    (similarity_conv3d, (2, 4, 5, 6, 7), (6, 2, 2, 3, 2), ((2, 1, 2), 1, (1, 2, 1), 2)),
]


@pytest.mark.parametrize(("convolve", "x", "weight", "geometry"), OTHER_DIMENSIONS)
@both_kinds
@both_backends
def test_other_dimensions_are_unfold_and_einsum(convolve, x, weight, geometry, kind, backend):
    x, weight = torch.randn(x).double(), torch.randn(weight).double()
    dims, taps = weight.dim() - 2, weight[0, 0].numel()
    output = getattr(F, f"conv{dims}d")(x, weight, None, *geometry).shape[2:]
    m = torch.randn(2, *[taps] * (1 + (kind == "full")), *output).double()
    y = convolve(x, weight, m, None, *geometry, backend=backend)
    sides = (1 if side == "same" else side for side in geometry[:3])
    window = [(side,) * dims if isinstance(side, int) else side for side in sides]
    assert_close(y.flatten(2), by_hand(x, weight, m, *window, geometry[3]))


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.batch], ids=ids)
def test_diagonal_is_a_deformable_convolution_without_offsets(problem):
    x, weight = problem.operands()
    m = problem.similarity("diagonal")
    offset = m.new_zeros(m.shape[0], 2 * problem.taps, *m.shape[2:])
    stride, padding, dilation, _ = problem.geometry  # it reads the groups off the kernel
    expected = deform_conv2d(x, offset, weight, None, stride, padding, dilation, m)
    assert_close(similarity_conv2d(x, weight, m, None, *problem.geometry), expected)


@everywhere
@both_kinds
@both_backends
def test_identity_is_the_plain_convolution(problem, kind, backend):
    x, weight = problem.operands()
    bias = torch.randn(weight.shape[0], dtype=x.dtype)
    m = of_kind(kind, torch.ones_like(problem.similarity("diagonal")))
    y = similarity_conv2d(x, weight, m, bias, *problem.geometry, backend=backend)
    assert_close(y, F.conv2d(x, weight, bias, *problem.geometry))


@everywhere
@both_kinds
def test_one_matrix_everywhere_is_the_static_similarity(problem, kind):
    x, weight = problem.operands()
    m = problem.similarity(kind)
    taps = m.shape[1:-2]
    static = torch.randn(taps, dtype=m.dtype)
    expected = similarity_conv2d(x, weight, static, None, *problem.geometry)
    everywhere = static[(None, ..., None, None)].expand(m.shape)
    assert_close(similarity_conv2d(x, weight, everywhere, None, *problem.geometry), expected)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel_size", [(3, 2), (4, 3)])
@both_kinds
def test_named_padding(padding, kernel_size, kind):
    problem = Problem("named", kernel_size=kernel_size, dilation=(1, 3))
    x, weight = problem.operands()
    output = F.conv2d(x, weight, None, 1, padding, (1, 3)).shape[2:]
    static = torch.randn((problem.taps,) * (1 + (kind == "full")), dtype=x.dtype)
    m = static[(None, ..., None, None)].expand(2, *static.shape, *output)
    y = similarity_conv2d(x, weight, m, None, 1, padding, (1, 3))
    assert_close(y, F.conv2d(x, fold_kernel(weight, static), None, 1, padding, (1, 3)))


@pytest.mark.parametrize("layout", ["channels_last", "strided", "expanded"])
@both_kinds
def test_memory_layouts(layout, kind):
    x, weight = PROBLEMS[0].operands()
    m = PROBLEMS[0].similarity(kind)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
        m = m.movedim(1, -1).contiguous().movedim(-1, 1)
    elif layout == "strided":
        x = x.repeat_interleave(2, 3)[..., ::2]
        weight, m = weight.transpose(2, 3).contiguous().transpose(2, 3), m.flip(0).flip(0)
    else:
        x, m = x[:1].expand(2, -1, -1, -1), m[:1].expand_as(m)
    y = similarity_conv2d(x, weight, m, padding=1)
    assert_close(y.flatten(2), by_hand(x, weight, m, (1, 1), (1, 1), (1, 1), 1))
    assert y.is_contiguous(memory_format=torch.channels_last) == (layout == "channels_last")


def test_layouts_of_three_dimensions():
    x, weight = torch.randn(2, 4, 3, 4, 5).double(), torch.randn(6, 4, 1, 3, 3).double()
    m = torch.randn(2, 9, 3, 2, 3).double()
    y = similarity_conv3d(x, weight, m)
    last = similarity_conv3d(x.to(memory_format=torch.channels_last_3d), weight, m)
    assert_close(y, last)
    assert last.is_contiguous(memory_format=torch.channels_last_3d)
    assert_close(similarity_conv3d(x[0], weight, m[0]), y[0])


LAYOUTS = torch.contiguous_format, torch.channels_last
"""A layout is told by strides alone where a tensor has one channel or one position."""


@pytest.mark.parametrize("shape", [(3, 5, 6, 4), (3, 1, 6, 4), (3, 5, 6, 1)])
@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("layouts", [*product(LAYOUTS, LAYOUTS)])
def test_output_lies_as_that_of_a_convolution(shape, kernel_size, layouts):
    kernel = torch.randn(4, shape[1], kernel_size, kernel_size)
    tensors = torch.randn(shape), kernel
    laid = [t.clone(memory_format=layout) for t, layout in zip(tensors, layouts, strict=True)]
    padding = kernel_size // 2
    y = F.conv2d(*laid, padding=padding)
    m = torch.ones(shape[0], kernel_size**2, *shape[2:])
    assert similarity_conv2d(*laid, m, padding=padding).stride() == y.stride()


@both_kinds
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("block", ["two images", "two rows"])
def test_a_batch_is_the_same_in_any_blocks(kind, stride, block, monkeypatch):
    problem = Problem("blocks", stride=stride, batch=5)
    tensors = [t.requires_grad_() for t in (*problem.operands(), problem.similarity(kind))]

    def results():
        y = similarity_conv2d(*tensors, stride=stride, padding=1)
        return y, *torch.autograd.grad(y.square().sum(), tensors)

    whole = results()
    image = whole[0][0, 0]
    positions = 2 * (image if block == "two images" else image[0]).numel()
    size = positions * problem.taps * problem.channels[0] * 8
    monkeypatch.setattr("neural_similarity.ops.eager.COLUMN_BYTES", size)
    assert_close(results(), whole)


@both_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_errs_at_most_twice_as_much_as_a_convolution(kind, dtype):
    problem = Problem("precision", channels=(32, 32), size=(12, 12))
    x, weight = (t.to(dtype) for t in problem.operands())
    m = of_kind(kind, 1 + 0.1 * problem.similarity("diagonal", torch.float32))
    y = similarity_conv2d(x, weight, m, padding=1)
    truth = similarity_conv2d(x.double(), weight.double(), m.double(), padding=1)
    plain = F.conv2d(x, weight, padding=1)
    plain_truth = F.conv2d(x.double(), weight.double(), padding=1)
    assert y.dtype == dtype
    assert (y - truth).square().mean() <= 4 * (plain - plain_truth).square().mean()


@both_kinds
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_near_the_identity_m_keeps_float32_precision(kind, backend):
    """An M that bf16 would round to I still moves the output by what it should."""
    problem = Problem("near", channels=(8, 8))
    x, weight = (t.bfloat16() for t in problem.operands())
    near = torch.full_like(problem.similarity("diagonal", torch.float32), 1 + 0.0035)
    m = of_kind(kind, near)
    truth = similarity_conv2d(x.double(), weight.double(), m.double(), padding=1)
    y = similarity_conv2d(x, weight, m, padding=1, backend=backend)
    rounded = similarity_conv2d(x, weight, m.bfloat16(), padding=1, backend=backend)
    plain = F.conv2d(x, weight, padding=1)
    if backend == "auto":
        assert torch.equal(rounded, plain)
    assert_close(rounded, plain, rtol=0.02, atol=0.06)  # other forms round other sums
    assert (y - truth).abs().mean() < (plain - truth).abs().mean()


@both_kinds
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_m_may_be_more_precise_than_the_input(backend, kind):
    x, weight = PROBLEMS[0].operands(torch.float32)
    m = PROBLEMS[0].similarity(kind)
    y = similarity_conv2d(x, weight, m, padding=1, backend=backend)
    assert_close(y, similarity_conv2d(x, weight, m.float(), padding=1))


@both_kinds
def test_autocast_computes_in_its_type(kind):
    x, weight = PROBLEMS[0].operands(torch.float32)
    m = PROBLEMS[0].similarity(kind, torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = similarity_conv2d(x, weight.requires_grad_(), m, padding=1)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert m.grad.dtype == weight.grad.dtype == torch.float32


SHAPES = {"x": (2, 4, 7, 9), "weight": (6, 4, 3, 3), "similarity": (2, 9, 7, 9), "bias": (6,)}
OTHER_SIZES = (4,), (7,), (), (4, 4), (10, 10), (5, 5), (6, 5), (5, 6), (1, 6), (1, 6, 6)


def changed_call(**changes):
    similarity_conv2d(**{n: torch.zeros(s) for n, s in SHAPES.items()} | {"padding": 1} | changes)


test_errors_say_what_is_required_and_what_came = refusals(
    ({"weight": torch.zeros(6, 4, 3)}, r"`weight` must be \(o, c/groups, kh, kw\)"),
    ({"x": torch.zeros(4, 7)}, r"`x` must be \(n, c, h, w\)"),
    ({"x": torch.zeros(2, 5, 7, 9)}, "`x` must have 4 channels .*, got 5"),
    ({"groups": 4}, "`groups` must divide the 6 kernels, got 4"),
    ({"bias": torch.zeros(5)}, r"`bias` must be \(6,\), got \(5,\)"),
    ({"similarity": torch.zeros(8)}, r"`similarity` must be \(9,\) or \(9, 9\).*got \(8,\)"),
    ({"similarity": torch.zeros(2, 9, 7, 8)}, r"must be \(2, 9, 7, 9\), .*got \(2, 9, 7, 8\)"),
    ({"stride": (1, 2, 3)}, r"`stride` must be 2 integers of at least 1"),
    ({"stride": 0}, "`stride` must be 2 integers of at least 1, got 0"),
    ({"padding": -1}, "`padding` must be 2 integers of at least 0"),
    ({"padding": "half"}, '`padding` must be integers, "same" or "valid"'),
    ({"padding": "same", "stride": 2}, '"same" needs `stride` 1, got 2'),
    ({"dilation": 9}, "the window .* is larger than `x`"),
    ({"backend": "cuda"}, "`backend` must be one of auto, triton, .*, got 'cuda'"),
    ({"x": torch.zeros(2, 4, 7, 9, dtype=torch.int64)}, "the auto backend declines .*int64"),
    ({"backend": "triton"}, "the triton backend declines .*on cpu, not on a GPU"),
    ({"backend": "compiled", "x": torch.zeros(2, 4, 7, 9).double()}, "compiled .*float64,"),
    ({"weight": torch.zeros(6, 4, 3, 3).double()}, "`weight` must have the input's dtype"),
    ({"similarity": torch.zeros(9, dtype=torch.complex64)}, "must be real, got"),
    ({"blocks": "channels"}, "`blocks` must be a pair of an axis and a number, got 'chan"),
    *(
        ({name: torch.zeros(SHAPES[name], device="meta")}, f"`{name}` must be on cpu, as `x`,")
        for name in ("weight", "similarity", "bias")
    ),
    ({"similarity": torch.zeros(2, 9, 1, 9)}, "one per image"),
    call=lambda changes: changed_call(**changes),
)
test_kernels_that_do_not_fold = refusals(
    *(
        (torch.zeros(4, 5, 3, 2), shape, rf"`similarity` must be .*, got {re.escape(str(shape))}")
        for shape in OTHER_SIZES
    ),
    (torch.ones(1, 1, 3, 3).long(), 9, "`weight` must have a floating-point dtype, got"),
    call=lambda weight, shape: fold_kernel(weight, torch.zeros(shape)),
)


test_errors_of_other_dimensions = refusals(
    (similarity_conv1d, (2, 4, 5, 5), (6, 4, 3), r"`x` must be \(n, c, w\) or \(c, w\)"),
    (similarity_conv1d, (2, 4, 5), (6, 4, 3, 3), r"`weight` must be \(o, c/groups, kw\)"),
    (similarity_conv3d, (4, 5, 5), (6, 4, 3, 3, 3), r"`x` must be \(n, c, d, h, w\) or"),
    call=lambda f, x, weight: f(torch.zeros(x), torch.zeros(weight), torch.zeros(3)),
)


def test_every_backend_is_an_entry_but_those_that_are_none():
    assert [*ENTRIES] == [name for name in BACKENDS if name not in ("auto", "reference")]

"""Blocks: an M of its own for every group of channels or kernels."""

import pytest
import torch
from problems import KINDS, Problem, by_hand
from refusals import refusals
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.functional import fold_kernel, similarity_conv2d

CASES = [
    (("channels", 2), Problem("shared-pairs", channels=(4, 6))),
    (("channels", 4), Problem("own", channels=(4, 6), stride=(2, 1))),
    (("channels", 1), Problem("one", channels=(4, 6))),
    (("channels", 2), Problem("across-groups", channels=(4, 6), groups=2)),
    (("channels", 3), Problem("cut-by-groups", channels=(12, 6), groups=2)),
    (("channels", 4), Problem("depthwise", channels=(4, 8), groups=4)),
    (("channels", 2), Problem("wider-than-groups", channels=(8, 4), groups=4)),
    (("channels", 2), Problem("of-a-depthwise-kernel", channels=(4, 4), groups=4)),
    (("filters", 3), Problem("filters", channels=(4, 6), kernel_size=(2, 3))),
    (("filters", 6), Problem("own-filters", channels=(4, 6), dilation=(1, 2))),
    (("filters", 4), Problem("filters-in-groups", channels=(4, 8), groups=2)),
    (("filters", 2), Problem("filters-of-groups", channels=(4, 8), groups=4)),
]
everywhere = pytest.mark.parametrize(("blocks", "problem"), CASES, ids=str)
both_kinds = pytest.mark.parametrize("kind", KINDS)


def operands(blocks, problem, kind):
    x, weight = problem.operands()
    m = torch.stack([problem.similarity(kind) for _ in range(blocks[1])], 1)
    return x, weight, m


@everywhere
@both_kinds
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_each_block_has_its_own_matrix(blocks, problem, kind, backend):
    x, weight, m = operands(blocks, problem, kind)
    y = similarity_conv2d(x, weight, m, None, *problem.geometry, blocks=blocks, backend=backend)
    assert_close(y.flatten(2), by_hand(x, weight, m, *problem.geometry, blocks))


@everywhere
@both_kinds
def test_static_blocks_fold(blocks, problem, kind):
    x, weight, m = operands(blocks, problem, kind)
    static = m[0, ..., 0, 0]
    m = static[(None, ..., None, None)].expand(m.shape)
    expected = by_hand(x, weight, m, *problem.geometry, blocks)
    y = similarity_conv2d(x, weight, static, None, *problem.geometry, blocks=blocks)
    assert_close(y.flatten(2), expected)
    kernel = fold_kernel(weight, static, blocks, problem.groups)
    assert_close(F.conv2d(x, kernel, None, *problem.geometry).flatten(2), expected)


@pytest.mark.parametrize(("blocks", "problem"), [CASES[0], CASES[3], CASES[6]], ids=str)
@both_kinds
def test_derivatives(blocks, problem, kind):
    tiny = Problem(
        "tiny", problem.kernel_size, size=(3, 2), batch=1, groups=problem.groups,
        channels=problem.channels,
    )  # fmt: skip
    tensors = [t.requires_grad_() for t in operands(blocks, tiny, kind)]

    def f(x, weight, m):
        return similarity_conv2d(x, weight, m, None, *tiny.geometry, blocks=blocks)

    assert gradcheck(f, tensors, fast_mode=True)
    assert gradgradcheck(f, tensors, fast_mode=True)


def blocked(blocks, groups, shape):
    x, weight = torch.zeros(1, 4, 4, 5), torch.zeros(6, 4 // groups, 3, 3)
    similarity_conv2d(x, weight, torch.zeros(shape), padding=1, groups=groups, blocks=blocks)


test_errors = refusals(
    (("taps", 2), 1, (2, 9), '`blocks` must split "channels" or "filters", got \'taps\''),
    (("channels", 3), 1, (3, 9), "`blocks` must divide the 4 channels, got 3"),
    (("filters", 4), 1, (4, 9), "`blocks` must divide the 6 filters, got 4"),
    (("filters", 3), 2, (3, 9), "`blocks` must divide `groups` 2 or be a multiple of it"),
    (("channels", 2), 1, (4, 9), r"`similarity` must be \(2, 9\) or \(2, 9, 9\).*\(4, 9\)"),
    (("channels", 2), 1, (1, 9, 4, 5), r"must be \(1, 2, 9, 4, 5\), one .*\(1, 9, 4, 5\)"),
    call=blocked,
)
test_folding_refuses_blocks_that_do_not_fit = refusals(
    ((2, 9), ("foo", 2), '`blocks` must split "channels" or "filters"'),
    ((1, 9), ("filters", 6), r"`similarity` must be \(6, 9\) or \(6, 9, 9\) .*got \(1, 9\)"),
    ((3, 9), ("channels", 2), r"`similarity` must be \(2, 9\) or \(2, 9, 9\) .*got \(3, 9\)"),
    ((3, 9), ("channels", 3), "`blocks` must divide the 4 channels, got 3"),
    call=lambda m, blocks: fold_kernel(torch.zeros(6, 4, 3, 3), torch.zeros(m), blocks),
)

"""One and three dimensions, by way of two."""

import pytest
import torch
from problems import KINDS
from refusals import refusals
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.functional import similarity_conv1d, similarity_conv2d, similarity_conv3d

both_kinds = pytest.mark.parametrize("kind", KINDS)
both_backends = pytest.mark.parametrize("backend", ["eager", "reference"])


def similarity(kind, taps, output, batch=2):
    sizes = (taps,) if kind == "diagonal" else (taps, taps)
    return torch.randn(batch, *sizes, *output, dtype=torch.float64)


@both_kinds
@both_backends
@pytest.mark.parametrize("geometry", [(1, 1, 1, 1), (2, 3, 2, 2), (1, "same", 1, 1)], ids=str)
def test_one_dimension_is_a_flat_image(kind, backend, geometry):
    stride, padding, dilation, groups = geometry
    x, weight = torch.randn(2, 4, 11).double(), torch.randn(6, 4 // groups, 3).double()
    output = F.conv1d(x, weight, None, *geometry).shape[2:]
    m = similarity(kind, 3, output)
    y = similarity_conv1d(x, weight, m, None, *geometry, backend=backend)
    flat = padding if isinstance(padding, str) else (0, padding)
    expected = similarity_conv2d(
        x[:, :, None], weight[:, :, None], m[..., None, :], None, (1, stride), flat, (1, dilation),
        groups,
    )  # fmt: skip
    assert_close(y, expected[:, :, 0])


@both_kinds
@both_backends
def test_three_dimensions_are_sums_over_slices(kind, backend):
    """Kernel slice i meets input slice j of every window through the block (i, j) of M."""
    x, weight = torch.randn(2, 4, 5, 6, 7).double(), torch.randn(6, 2, 2, 3, 2).double()
    stride, dilation, groups = (2, 1, 2), (1, 2, 1), 2
    output = F.conv3d(x, weight, None, stride, 0, dilation, groups).shape[2:]
    m = similarity(kind, 12, output)
    y = similarity_conv3d(x, weight, m, None, stride, 0, dilation, groups, backend=backend)
    expected = torch.zeros_like(y)
    for depth in range(output[0]):
        for i in range(2):
            for j in range(2):
                rows, columns = slice(6 * i, 6 * i + 6), slice(6 * j, 6 * j + 6)
                if kind == "diagonal" and i != j:
                    continue
                block = m[:, rows] if kind == "diagonal" else m[:, rows, columns]
                expected[:, :, depth] += similarity_conv2d(
                    x[:, :, 2 * depth + j], weight[:, :, i], block[..., depth, :, :], None,
                    stride[1:], 0, dilation[1:], groups,
                )  # fmt: skip
    assert_close(y, expected)


def test_layouts_of_three_dimensions():
    x, weight = torch.randn(2, 4, 3, 4, 5).double(), torch.randn(6, 4, 1, 3, 3).double()
    m = similarity("diagonal", 9, (3, 2, 3))
    y = similarity_conv3d(x, weight, m)
    last = similarity_conv3d(x.to(memory_format=torch.channels_last_3d), weight, m)
    assert_close(y, last)
    assert last.is_contiguous(memory_format=torch.channels_last_3d)
    assert_close(similarity_conv3d(x[0], weight, m[0]), y[0])


test_errors = refusals(
    (similarity_conv1d, (2, 4, 5, 5), (6, 4, 3), r"`x` must be \(n, c, w\) or \(c, w\)"),
    (similarity_conv1d, (2, 4, 5), (6, 4, 3, 3), r"`weight` must be \(o, c/groups, kw\)"),
    (similarity_conv3d, (4, 5, 5), (6, 4, 3, 3, 3), r"`x` must be \(n, c, d, h, w\) or"),
    call=lambda f, x, weight: f(torch.zeros(x), torch.zeros(weight), torch.zeros(3)),
)

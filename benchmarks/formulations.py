"""Other ways to compute a dynamic similarity, each a function (x, kernel, M) of the same result.

They are written as they are found elsewhere, in the layouts there, M rounded to the type of x. M is
(n, 9, h, w), diagonal, or (n, 81, h, w), M[kernel tap, patch tap] row by row.
"""

from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.case import KERNEL, PADDING, TAPS


def tensorflow_diagonal(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """The authors' TensorFlow code, `_1dcond_conv_layer`: nine convolutions of one live tap each.

    The kernel is nine times as large, 8/9 of it zeros; the maps of the taps are masked and summed.
    """
    live = torch.eye(TAPS, dtype=x.dtype, device=x.device).view(TAPS, 1, 1, KERNEL, KERNEL)
    maps = _channels_last(F.conv2d(x, (weight * live).flatten(0, 1), padding=PADDING))
    return (maps * _channels_last(m.to(x.dtype))).sum(-2).movedim(-1, 1)


def tensorflow_full(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """The authors' TensorFlow code, `_2dcond_conv_layer`.

    A 1×1 convolution with every kernel tap; then for each patch tap the shifted maps are mixed.
    """
    taps = weight.flatten(2).movedim(2, 0).reshape(-1, x.shape[1], 1, 1)
    maps = _channels_last(F.pad(F.conv2d(x, taps), (PADDING,) * 4))
    mixing = _channels_last(m.to(x.dtype))
    height, width = x.shape[2:]
    y = torch.zeros_like(maps[:, :height, :width, 0])
    for tap, (row, column) in enumerate(product(range(KERNEL), repeat=2)):
        shifted = maps[:, row : row + height, column : column + width]
        y = y + (mixing[..., tap : tap + 1] * shifted).sum(-2)
    return y.movedim(-1, 1)


def _channels_last(maps: Tensor) -> Tensor:
    """Maps (n, 9·c, h, w) as TensorFlow has them: (n, h, w, 9, c)."""
    return maps.movedim(1, -1).unflatten(-1, (TAPS, -1))


def unfold(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """`unfold`, every patch times its M, times the kernel matrix."""
    columns = F.unfold(x, KERNEL, padding=PADDING).unflatten(1, (-1, TAPS))
    m = m.to(x.dtype).flatten(2)
    if m.shape[1] == TAPS:
        columns = columns * m.unsqueeze(1)
    else:
        columns = torch.einsum("npql,ncql->ncpl", m.unflatten(1, (TAPS, TAPS)), columns)
    return (weight.flatten(1) @ columns.flatten(1, 2)).unflatten(2, x.shape[2:])


def deformable(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """`torchvision.ops.deform_conv2d` with zero offsets and M for its mask; diagonal only."""
    from torchvision.ops import deform_conv2d

    offset = x.new_zeros(len(x), 2 * TAPS, *x.shape[2:])
    padding = (PADDING, PADDING)
    return deform_conv2d(x, offset, weight, padding=padding, mask=m.to(x.dtype))


BY_KIND = {
    "diagonal": {
        "TensorFlow form": tensorflow_diagonal,
        "unfold + matmul": unfold,
        "deform_conv2d": deformable,
    },
    "full": {"TensorFlow form": tensorflow_full, "unfold + matmul": unfold},
}
"""All of them by their names, by the kind of M."""

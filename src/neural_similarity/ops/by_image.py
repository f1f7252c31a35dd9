"""One M per image: folded into one kernel per image, all applied by one grouped convolution."""

from math import prod

import torch
from torch import Tensor

from neural_similarity.ops.kernel import fold_by_image
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.tracing import only_torch_ops
from neural_similarity.ops.window import CONVOLUTIONS


def folds_by_image(x: Tensor, weight: Tensor, output: tuple[int, ...], groups: int) -> bool:
    """Whether folding takes fewer multiplications than M at every position.

    A full M costs o·(c/g)·K² an image in the kernel and P·c·K² at P positions. Programs that are
    traced, exported or compiled for batches of any size cannot have as many groups as images.
    """
    if only_torch_ops() or torch.compiler.is_compiling():
        return False
    return len(x) > 0 and prod(output) * groups > weight.shape[0]


def convolve_by_image(given: Operands, bias: Tensor | None) -> Tensor:
    """The convolution with M (n, K, 1, ...) or (n, K, K, 1, ...), each image with its kernel W M.

    W may be wider than x; W M is rounded once. The images lie side by side as groups of channels.
    Where channels are adjacent they would have to be copied for that, and back: these go through
    one convolution each.
    """
    x, weight, m, window, groups = given
    n, dims = len(x), x.dim() - 2
    kernels = fold_by_image(weight, m.flatten(-dims - 1), x.dtype)
    geometry, convolve = (window.stride, window.padding, window.dilation), CONVOLUTIONS[dims]
    if given.has_channels_last():
        parts = zip(x.split(1), kernels.unbind(), strict=True)
        y = torch.cat([convolve(image, kernel, None, *geometry, groups) for image, kernel in parts])
    else:
        side_by_side = x.reshape(1, -1, *x.shape[2:])
        y = convolve(side_by_side, kernels.flatten(0, 1), None, *geometry, n * groups)
        y = y.view(n, -1, *y.shape[2:])
    y = given.in_format(y)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * dims)

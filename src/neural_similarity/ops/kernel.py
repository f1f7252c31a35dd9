"""M in the kernel, W' = W M: of a static similarity, or one kernel for every image."""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops import native, reference
from neural_similarity.ops.blocks import Blocks, check_blocks
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.tracing import only_torch_ops
from neural_similarity.ops.window import (
    CONVOLUTIONS,
    promote_dtype,
    require_tensors,
    without_autocast,
)


def fold_kernel(
    weight: Tensor,
    similarity: Tensor,
    blocks: Blocks | None = None,
    groups: int = 1,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The kernel whose plain convolution equals the static similarity: $W'_q = \sum_p W_p M_{pq}$.

    Computed in float32 (float64 where an input is that), outside autocast. Paper, §3.2.

    Args:
        weight: (*lead, *kernel) with K taps in the trailing kernel dimensions; with `blocks`
            (o, c/groups, *kernel).
        similarity: (K,) diagonal or (K, K), indexed M[kernel tap, patch tap]; with `blocks` of b
            groups (b, K) or (b, K, K). A matrix over more of the trailing dimensions, such as
            (c/groups·K, c/groups·K), acts on all of them.
        blocks: The channels or kernels that have an M of their own, see `similarity_conv2d`.
        groups: Groups of the convolution; used with `blocks` only.
        dtype: Of the result; by default `weight`'s.

    Returns:
        The kernel W M, of the shape of W.

    Raises:
        ValueError: M is neither diagonal nor square, or of another length than the last dimensions
            of `weight`, or `blocks` do not fit; or `weight` holds integers.
    """
    require_tensors(weight=weight, similarity=similarity)
    if not (weight.is_floating_point() or weight.is_complex()):
        raise ValueError(f"`weight` must have a floating-point dtype, got {weight.dtype}")
    dtype = dtype or weight.dtype
    with without_autocast(weight):
        m = promote_dtype(similarity)
        taps = prod(weight.shape[2:])
        if blocks is None and weight.dim() > 2 and m.shape in ((taps,), (taps, taps)):
            rows, matrix = weight.flatten(2), m if m.dim() > 1 else torch.diag(m)
            if native.takes_kernel(rows, matrix, dtype):
                fold = _Fold.apply if torch.is_grad_enabled() else _fold_op
                return fold(rows, matrix, dtype).view(weight.shape)
        kernel = weight.to(torch.promote_types(weight.dtype, m.dtype))
        m = m.to(kernel.dtype)
        if blocks is None:
            folded = _kernel_times_matrix(kernel, m)
        else:
            check_blocks(blocks, weight.shape[1] * groups, weight.shape[0], groups)
            shapes = [(blocks[1], *[prod(weight.shape[2:])] * square) for square in (1, 2)]
            if m.shape not in shapes:
                raise ValueError(
                    f"`similarity` must be {shapes[0]} or {shapes[1]} for blocks {blocks}, "
                    f"got {tuple(m.shape)}"
                )
            folded = _times_blocks(kernel.flatten(2), m, blocks, groups)
        return folded.reshape(weight.shape).to(dtype)


def fold_by_image(weight: Tensor, m: Tensor, dtype: torch.dtype) -> Tensor:
    """The kernel W M of every image, (n, *weight), for M (n, K) or (n, K, K), outside autocast."""
    kernel = weight.flatten(2).to(m.dtype)
    folded = kernel * m[:, None, None] if m.dim() == 2 else kernel.flatten(0, 1) @ m
    return folded.to(dtype).reshape(m.shape[0], *weight.shape)


class _Fold(Function):
    """W M in one pass, and both its gradients in another."""

    @staticmethod
    def forward(ctx: Any, kernel: Tensor, m: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(kernel, m)
        return _fold_op(kernel, m, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,), (kernel, m) = grad_outputs, ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = grad.to(m.dtype)
            return grad @ m.mT, torch.einsum("ocs,oct->st", kernel, grad), None
        needs = ctx.needs_input_grad[:2]
        of_kernel, of_m = _fold_backward_op(grad, kernel, m, needs)
        return of_kernel if needs[0] else None, of_m if needs[1] else None, None


_fold_op = register_operator(
    "fold_kernel",
    "(Tensor kernel, Tensor m, ScalarType dtype) -> Tensor",
    native.fold_kernel,
    native.empty_folded,
)
_fold_backward_op = register_operator(
    "fold_kernel_backward",
    "(Tensor grad, Tensor kernel, Tensor m, bool[] needs) -> (Tensor, Tensor)",
    native.fold_gradients,
    lambda _grad, kernel, m, _needs: (torch.empty_like(kernel), torch.empty_like(m)),
)


def _kernel_times_matrix(kernel: Tensor, m: Tensor) -> Tensor:
    """kernel · M; a channels-last kernel is used without a copy and stays channels-last."""
    trailing = _tap_shape(kernel, m)
    if m.dim() == 1:
        return kernel * m.reshape(trailing)
    if kernel.dim() > 2 and not kernel.is_contiguous():
        taps_first = kernel.flatten(2).mT
        if taps_first.is_contiguous() and taps_first.shape[1] == len(m):
            return torch.bmm(m.mT.expand(len(kernel), -1, -1), taps_first).mT
    return kernel.reshape(-1, m.shape[-1]) @ m


def _tap_shape(kernel: Tensor, m: Tensor) -> torch.Size:
    """The kernel's last dimensions, those that M acts on."""
    sizes = (kernel.shape[-dims:] for dims in range(1, kernel.dim() + 1))
    trailing = next((size for size in sizes if m.shape in ((n := prod(size),), (n, n))), None)
    if trailing is None:
        raise ValueError(
            f"`similarity` must be (K,) or (K, K) for the K numbers of the last dimensions of the "
            f"weight {tuple(kernel.shape)}, got {tuple(m.shape)}"
        )
    return trailing


def _times_blocks(kernel: Tensor, m: Tensor, blocks: Blocks, groups: int) -> Tensor:
    """A kernel (o, c/groups, K) times the M of each filter or of each channel."""
    out_channels, channels = kernel.shape[:2]
    axis, count = blocks
    if axis == "filters":
        m = m.repeat_interleave(out_channels // count, 0).unsqueeze(1)
        return kernel * m if m.dim() == 3 else kernel @ m.squeeze(1)
    m = m.repeat_interleave(channels * groups // count, 0).unflatten(0, (groups, 1, channels))
    kernel = kernel.unflatten(0, (groups, -1))
    folded = kernel * m if m.dim() == 4 else (kernel.unsqueeze(-2) @ m).squeeze(-2)
    return folded.flatten(0, 1)


def folds_by_image(x: Tensor, weight: Tensor, output: tuple[int, ...], groups: int) -> bool:
    """Whether folding takes fewer multiplications than M at every position.

    A full M costs o·(c/g)·K² an image in the kernel and P·c·K² at P positions. Exported programs
    fold for maps of any size; compiled ones cannot have as many groups as images.
    """
    if only_torch_ops():
        return True
    if torch.compiler.is_compiling():
        return False
    return len(x) > 0 and prod(output) * groups > weight.shape[0]


def convolve_by_image(given: Operands, bias: Tensor | None) -> Tensor:
    """The convolution with M (n, K, 1, ...) or (n, K, K, 1, ...), each image with its kernel W M.

    W may be wider than x; W M is rounded once. The images lie side by side as groups of channels.
    Where channels are adjacent several would have to be copied for that, and back: these go through
    one convolution each. Exported programs multiply patches, for any number of images, but for one
    image alone: Core ML convolves with such a kernel if there are neither groups nor dilation.
    """
    x, weight, m, window, groups = given
    n, dims, exported = x.shape[0], x.dim() - 2, only_torch_ops()
    kernels = fold_by_image(weight, m.flatten(-dims - 1), x.dtype)
    geometry, convolve = (window.stride, window.padding, window.dilation), CONVOLUTIONS[dims]
    bias = None if bias is None else bias.to(x.dtype)
    single = isinstance(n, int) and n == 1
    if exported and not (single and groups == max(window.dilation) == 1):
        y = reference.convolve_by_image(x, kernels, window, groups)
        return y if bias is None else y + bias.view(-1, *[1] * dims)
    if n > 1 and not exported and given.memory_format() != torch.contiguous_format:
        parts = zip(x.split(1), kernels.unbind(), strict=True)
        y = torch.cat([convolve(image, kernel, bias, *geometry, groups) for image, kernel in parts])
    else:
        # Reshaped, a single image in channels-last has a batch stride that misleads torch.
        side_by_side = x if single else x.reshape(1, -1, *x.shape[2:])
        bias = bias if bias is None else bias.repeat(n)
        y = convolve(side_by_side, kernels.flatten(0, 1), bias, *geometry, n * groups)
        y = y.view(n, -1, *y.shape[2:])
    return y if exported else given.in_format(y)

"""The eager form of both dynamic operators: mixed patches (columns) times the kernel matrix.

The batch is taken in blocks whose columns fit a core's cache, so nothing of K times the input's
size stays in memory, and backward recomputes the columns instead of keeping them.

Letters: n images, *out positions, *kernel taps (K in all), N = n·∏out, c channels, g groups.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from neural_similarity.ops.window import Window

BLOCK_BYTES = 1 << 22
"""Size of a block of columns: about two cores' second-level caches."""


class Mixing(Protocol):
    """How M, (N, K) or (N, K, K), acts on patches, a view (n, *out, *kernel, c)."""

    def mix(self, patches: Tensor, m: Tensor) -> Tensor:
        """Columns M·patch: (N, K, c), contiguous, in the dtype of `patches`."""
        ...

    def transpose(self, grad: Tensor, m: Tensor) -> Tensor:
        """Gradient Mᵀ·grad of the patches, (N, K, c), given that of the columns."""
        ...

    def gradient(self, grad: Tensor, patches: Tensor) -> Tensor:
        """Gradient of M, shaped like it, given that of the columns."""
        ...


def forward(
    mixing: Mixing, x: Tensor, weight: Tensor, m: Tensor, window: Window, groups: int
) -> Tensor:
    """y (n, o, *out) in the memory format of x (n, c, *size); m (n, K, *out) or (n, K, K, *out)."""
    output = window.output_size(x.shape[2:])
    kernel = _kernel_matrix(weight, groups)
    y = x.new_empty(x.shape[0], *output, weight.shape[0])
    for rows in _blocks(x, window, output):
        patches = window.patches(window.pad(x[rows]))
        columns = mixing.mix(patches, _positions_first(m[rows], len(output)))
        y[rows] = _join(_split(columns, groups) @ kernel).view(y[rows].shape)
    return like_convolution(y, x)


def backward(
    mixing: Mixing,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    m: Tensor,
    window: Window,
    groups: int,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and m; an empty tensor for each that `needs` leaves out."""
    needs_x, needs_weight, needs_m = needs
    dims = len(window.kernel_size)
    kernel = _kernel_matrix(weight, groups)
    grad_x, grad_m = empty_gradients((x, m), (needs_x, needs_m))
    grad_kernel = torch.zeros_like(kernel, dtype=_accumulator(kernel))
    for rows in _blocks(x, window, grad.shape[2:]):
        padded = window.pad(x[rows])
        patches = window.patches(padded)
        m_rows = _positions_first(m[rows], dims)
        outgoing = _split(grad[rows].movedim(1, -1).reshape(len(m_rows), 1, -1), groups)
        if needs_weight:
            grad_kernel += _split(mixing.mix(patches, m_rows), groups).mT @ outgoing
        if not (needs_x or needs_m):
            continue
        grad_columns = _join(outgoing @ kernel.mT, window.taps)
        if needs_m:
            grad_rows = mixing.gradient(grad_columns, patches)
            grad_m[rows] = _positions_last(grad_rows, grad_m[rows].shape)
        if needs_x:
            target = torch.zeros_like(padded, dtype=_accumulator(padded))
            taps = mixing.transpose(grad_columns, m_rows).view(patches.shape)
            window.scatter_patches(target, taps)
            grad_x[rows] = window.interior(target).movedim(-1, 1)
    return grad_x, _kernel_tensor(grad_kernel, weight, needs_weight), grad_m


def empty_gradients(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """An uninitialised gradient per tensor; nothing allocated where it is not needed."""
    return [
        torch.empty_like(tensor) if need else tensor.new_empty(0)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def _blocks(x: Tensor, window: Window, output: Sequence[int]) -> Iterator[slice]:
    """Slices of the batch whose columns hold about `BLOCK_BYTES`."""
    image_bytes = prod(output) * window.taps * x.shape[1] * x.element_size()
    step = max(1, BLOCK_BYTES // max(1, image_bytes))
    return (slice(start, start + step) for start in range(0, x.shape[0], step))


def _positions_first(m: Tensor, dims: int) -> Tensor:
    """(n, *taps, *out) as contiguous (N, *taps)."""
    taps = range(1, m.dim() - dims)
    return m.movedim(tuple(taps), tuple(range(-len(taps), 0))).reshape(-1, *m.shape[1 : len(taps) + 1])


def _positions_last(m: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, *taps) as (n, *taps, *out) of the given shape."""
    taps = m.dim() - 1
    m = m.view(shape[0], *shape[1 + taps :], *m.shape[1:])
    return m.movedim(tuple(range(-taps, 0)), tuple(range(1, 1 + taps)))


def _split(columns: Tensor, groups: int) -> Tensor:
    """(N, K, c) as (g, N, K·c/g): each group's channels together."""
    if groups == 1:
        return columns.flatten(1).unsqueeze(0)
    return columns.unflatten(2, (groups, -1)).permute(2, 0, 1, 3).flatten(2)


def _join(columns: Tensor, taps: int = 1) -> Tensor:
    """(g, N, K·c/g) as contiguous (N, K, c): `_split` undone."""
    columns = columns.unflatten(2, (taps, -1)).permute(1, 2, 0, 3)
    return columns.reshape(*columns.shape[:2], -1)


def _kernel_matrix(weight: Tensor, groups: int) -> Tensor:
    """(o, c/g, *kernel) as (g, K·c/g, o/g)."""
    return weight.flatten(2).unflatten(0, (groups, -1)).permute(0, 3, 2, 1).flatten(1, 2)


def _kernel_tensor(matrix: Tensor, weight: Tensor, needed: bool) -> Tensor:
    """(g, K·c/g, o/g) as a tensor like `weight`, empty if it is not needed."""
    (result,) = empty_gradients((weight,), (needed,))
    if needed:
        matrix = matrix.unflatten(1, (-1, weight.shape[1])).permute(0, 3, 2, 1)
        result.copy_(matrix.reshape(weight.shape))
    return result


def like_convolution(y: Tensor, x: Tensor) -> Tensor:
    """(n, *out, o) as (n, o, *out), in memory channels-last exactly where `x` is."""
    y = y.movedim(-1, 1)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    keep = x.dim() > 3 and x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return y if keep else y.contiguous()


def _accumulator(tensor: Tensor) -> torch.dtype:
    """Sums over many terms are taken in float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)

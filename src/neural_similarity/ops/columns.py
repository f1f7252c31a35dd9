"""The eager form of both dynamic operators: mixed patches (columns) times the kernel matrix.

The batch is taken in blocks whose columns fit a core's cache, so nothing of K times the input's
size stays in memory, and backward recomputes the columns instead of keeping them.

Letters: n images, *out positions, *kernel taps (K in all), N = n·∏out, c channels, g groups of a
grouped convolution, b blocks of channels that have an M of their own.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.window import Window

BLOCK_BYTES = 1 << 21
"""Size of a block of columns: about a core's second-level cache."""


class Mixing(Protocol):
    """How M, (N, b, K) or (N, b, K, K), acts on patches, a view (n, *out, *kernel, c).

    Each of the b blocks of channels has its own M. `out` and `scratch` are contiguous (N, K, c) in
    the dtype of `patches`; both may be written.
    """

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Columns M·patch into `out`."""
        ...

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        """Gradient Mᵀ·grad of the patches into `out`, given that of the columns."""
        ...

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor, blocks: int) -> Tensor:
        """Gradient of M in `blocks` blocks, given that of the columns."""
        ...


def forward(
    mixing: Mixing, x: Tensor, weight: Tensor, m: Tensor, window: Window, groups: int
) -> Tensor:
    """y (n, o, *out) in the memory format of x (n, c, *size); m (n, b, K, *out) or with K, K."""
    output = window.output_size(x.shape[2:])
    kernel = _kernel_matrix(weight, groups)
    y = x.new_empty(groups, x.shape[0], prod(output), weight.shape[0] // groups)
    for rows, (columns, scratch) in _blocks(x, window, output, buffers=2):
        patches = window.patches(window.pad(x[rows]))
        mixing.mix(patches, _positions_first(m[rows], len(output)), columns, scratch)
        y[:, rows] = torch.bmm(_split(columns, groups), kernel).view(y[:, rows].shape)
    return like_convolution(y.permute(1, 2, 0, 3).flatten(2).unflatten(1, output), x)


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
    scatter_x = needs_x and not _has_mirror(window, m)
    kernel = _kernel_matrix(weight, groups).mT
    grad_x, grad_m = empty_gradients((x, m), (needs_x, needs_m))
    grad_kernel = torch.zeros_like(kernel, dtype=_accumulator(kernel))
    blocks = _blocks(x, window, grad.shape[2:], buffers=3)
    for rows, (columns, grad_columns, scratch) in blocks:
        padded = window.pad(x[rows])
        patches = window.patches(padded)
        m_rows = _positions_first(m[rows], len(window.kernel_size))
        outgoing = _split(grad[rows].movedim(1, -1).reshape(len(m_rows), 1, -1), groups)
        if needs_weight:
            mixing.mix(patches, m_rows, columns, scratch)
            grad_kernel += torch.bmm(outgoing.mT, _split(columns, groups))
        if needs_m or scatter_x:
            _product(outgoing, kernel, grad_columns)
        if scatter_x:
            mixing.transpose(grad_columns, m_rows, scratch)
            target = torch.zeros_like(padded, dtype=_accumulator(padded))
            window.scatter_patches(target, scratch.view(patches.shape))
            grad_x[rows] = window.interior(target).movedim(-1, 1)
        if needs_m:
            grad_rows = mixing.gradient(grad_columns, patches, scratch, m.shape[1])
            grad_m[rows] = _positions_last(grad_rows, grad_m[rows].shape)
    if needs_x and not scatter_x:
        mirrored = _mirror(weight, m, window, groups)
        grad_x.copy_(forward(mixing, grad, *mirrored, groups))
    return grad_x, _kernel_tensor(grad_kernel.mT, weight, needs_weight), grad_m


def empty_gradients(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """An uninitialised gradient per tensor; nothing allocated where it is not needed."""
    return [
        torch.empty_like(tensor) if need else tensor.new_empty(0)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def like_convolution(y: Tensor, x: Tensor) -> Tensor:
    """(n, *out, o) as (n, o, *out), in memory channels-last exactly where `x` is."""
    y = y.movedim(-1, 1)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    keep = x.dim() > 3 and x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return y if keep else y.contiguous()


def _has_mirror(window: Window, m: Tensor) -> bool:
    """Whether the data gradient is best had as the operator itself on mirrored arguments.

    It can at stride 1 with one M for all channels; mirroring a full M moves more numbers than
    adding the patches up.
    """
    if m.dim() - len(window.kernel_size) > 3 or m.shape[1] > 1:
        return False
    reach = (d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True))
    fits = all(p <= r for p, r in zip(window.padding, reach, strict=True))
    return fits and all(step == 1 for step in window.stride)


def _mirror(
    weight: Tensor, m: Tensor, window: Window, groups: int
) -> tuple[Tensor, Tensor, Window]:
    """Kernel, M and window that carry the gradient of y to that of x.

    An input position meets every tap once, at an output position of its own: the kernel is
    transposed and its taps are reversed, and so are M's, each read at that tap's position.
    `m` is diagonal, in one block.
    """
    dims = len(window.kernel_size)
    spatial = tuple(range(-dims, 0))
    kernel = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(spatial)
    reach = [d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True)]
    padding = tuple(r - p for r, p in zip(reach, window.padding, strict=True))
    mirror = window._replace(padding=padding)
    sides = [p for p in reversed(padding) for _ in range(2)]
    views = F.pad(m[:, 0].flip(1), sides)
    for dim, (k, d) in enumerate(zip(window.kernel_size, window.dilation, strict=True), start=2):
        views = views.unfold(dim, d * (k - 1) + 1, 1)[..., ::d]
    positions = enumerate(product(*map(range, window.kernel_size)))
    own = [views[:, tap][..., *position] for tap, position in positions]
    return kernel, torch.stack(own, 1).unsqueeze(1), mirror


def _blocks(
    x: Tensor, window: Window, output: Sequence[int], buffers: int
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Slices of the batch, each with `buffers` tensors (N, K, c) of about `BLOCK_BYTES`.

    The buffers are the same memory for every slice: fresh pages cost more than the arithmetic.
    """
    positions = prod(output)
    image_bytes = positions * window.taps * x.shape[1] * x.element_size()
    step = min(x.shape[0], max(1, BLOCK_BYTES // max(1, image_bytes)))
    memory = [x.new_empty(step * positions, window.taps, x.shape[1]) for _ in range(buffers)]
    for start in range(0, x.shape[0], step or 1):
        stop = min(start + step, x.shape[0])
        yield slice(start, stop), [buffer[: (stop - start) * positions] for buffer in memory]


def _positions_first(m: Tensor, dims: int) -> Tensor:
    """(n, b, *taps, *out) as contiguous (N, b, *taps)."""
    taps = range(1, m.dim() - dims)
    return m.movedim(tuple(taps), tuple(range(-len(taps), 0))).reshape(
        -1, *m.shape[1 : len(taps) + 1]
    )


def _positions_last(m: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, b, *taps) as (n, b, *taps, *out) of the given shape."""
    taps = m.dim() - 1
    m = m.view(shape[0], *shape[1 + taps :], *m.shape[1:])
    return m.movedim(tuple(range(-taps, 0)), tuple(range(1, 1 + taps)))


def _split(columns: Tensor, groups: int) -> Tensor:
    """(N, K, c) as (g, N, K·c/g): each group's channels together."""
    if groups == 1:
        return columns.flatten(1).unsqueeze(0)
    return columns.unflatten(2, (groups, -1)).permute(2, 0, 1, 3).flatten(2)


def _product(outgoing: Tensor, kernel: Tensor, out: Tensor) -> None:
    """(g, N, o/g) times (g, o/g, K·c/g) into `out` (N, K, c)."""
    if len(kernel) == 1:
        torch.mm(outgoing[0], kernel[0], out=out.view(len(out), -1))
    else:
        columns = torch.bmm(outgoing, kernel).unflatten(2, (out.shape[1], -1))
        out.copy_(columns.permute(1, 2, 0, 3).flatten(2))


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


def _accumulator(tensor: Tensor) -> torch.dtype:
    """Sums over many terms are taken in float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)

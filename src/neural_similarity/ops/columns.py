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


class Arithmetic(Protocol):
    """How M, (N, b, K) or (N, b, K, K), acts on patches, a view (n, *out, *kernel, c).

    Each of the b blocks of channels has its own M. Columns, their gradient and `scratch` are
    contiguous (N, K, c) in the input's dtype; `out` and `scratch` may be written.
    """

    mirrors: bool
    """Whether the data gradient of a convolution is cheaper as one of mirrored arguments."""

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Columns M·patch into `out`."""
        ...

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        """Gradient Mᵀ·grad of the patches into `out`, given that of the columns."""
        ...

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor, blocks: int) -> Tensor:
        """Gradient of M in `blocks` blocks, given that of the columns."""
        ...


class Eager:
    """`trilinear.Implementation` in torch's operations, for any dtype and device."""

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic

    def forward(self, x: Tensor, weight: Tensor, m: Tensor, window: Window, groups: int) -> Tensor:
        """`Implementation.forward`."""
        output = window.output_size(x.shape[2:])
        kernel = _kernel_matrix(weight, groups)
        y = x.new_empty(groups, x.shape[0] * prod(output), weight.shape[0] // groups)
        blocks = _Blocks(x, window, output)
        columns, scratch = blocks.buffers(2)
        for images in blocks.images():
            padded = blocks.padded(x[images])
            for rows in blocks.rows():
                span = blocks.span(images, rows)
                part = columns[: len(span)]
                m_part = _positions_first(_rows(m[images], len(output), rows), len(output))
                patches = window.patches(window.rows(padded, rows))
                self.arithmetic.mix(patches, m_part, part, scratch[: len(span)])
                _join(part, kernel, y[:, span.start : span.stop])
        y = y.unflatten(1, (x.shape[0], *output)).movedim(0, -2).flatten(-2)
        return like_convolution(y, x)

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        m: Tensor,
        window: Window,
        groups: int,
        needs: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`Implementation.backward`."""
        needs_x, needs_weight, needs_m = needs
        mirrored = needs_x and self.arithmetic.mirrors and _has_mirror(window, m)
        output, dims = grad.shape[2:], len(window.kernel_size)
        kernel = _kernel_matrix(weight, groups)
        grad_x, grad_m = empty_gradients((x, m), (needs_x, needs_m))
        grad_kernel = torch.zeros_like(kernel, dtype=_accumulator(kernel))
        blocks = _Blocks(x, window, output)
        columns, grad_columns, scratch = blocks.buffers(3)
        for images in blocks.images():
            padded = blocks.padded(x[images])
            grad_padded = blocks.zeros(padded) if needs_x and not mirrored else None
            for rows in blocks.rows():
                size = len(blocks.span(images, rows))
                m_part = _positions_first(_rows(m[images], dims, rows), dims)
                outgoing = _rows(grad[images], dims, rows).movedim(1, -1).reshape(size, 1, -1)
                outgoing = _split(outgoing, groups)
                if needs_m or grad_padded is not None:
                    _expand(outgoing, kernel, grad_columns[:size])
                patches = window.patches(window.rows(padded, rows))
                mixed, gradient, spare = columns[:size], grad_columns[:size], scratch[:size]
                if needs_weight:
                    self.arithmetic.mix(patches, m_part, mixed, spare)
                    grad_kernel += torch.bmm(outgoing.mT, _split(mixed, groups))
                if grad_padded is not None:
                    self.arithmetic.transpose(gradient, m_part, spare)
                    window.scatter_patches(
                        window.rows(grad_padded, rows), spare.view(patches.shape)
                    )
                if needs_m:
                    target = _rows(grad_m[images], dims, rows)
                    found = self.arithmetic.gradient(gradient, patches, spare, m_part.shape[1])
                    target.copy_(_positions_last(found, target.shape))
            if grad_padded is not None:
                grad_x[images] = window.interior(grad_padded).movedim(-1, 1)
        if mirrored:
            mirror_kernel, mirror_m, mirror = _mirror(weight, m, window, groups)
            grad_x.copy_(self.forward(grad, mirror_kernel, mirror_m, mirror, groups))
        return grad_x, _kernel_tensor(grad_kernel, weight, needs_weight), grad_m


def empty_gradients(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """An uninitialised gradient per tensor; nothing allocated where it is not needed."""
    return [
        torch.empty_like(tensor) if need else tensor.new_empty(0)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def like_convolution(y: Tensor, x: Tensor) -> Tensor:
    """(n, *out, o) as (n, o, *out), in memory channels-last exactly where `x` is."""
    return y.movedim(-1, 1).contiguous(memory_format=_output_format(x))


def empty_output(x: Tensor, output: Sequence[int], channels: int) -> Tensor:
    """Uninitialised (n, channels, *output), likewise."""
    shape = (x.shape[0], channels, *output)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_output_format(x))


def _output_format(x: Tensor) -> torch.memory_format:
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    keep = x.dim() > 3 and x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return last if keep else torch.contiguous_format


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


class _Blocks:
    """A batch in blocks of images, or of an image's rows, whose columns fit `BLOCK_BYTES`.

    All blocks use the same buffers: fresh pages cost more than the arithmetic.
    """

    def __init__(self, x: Tensor, window: Window, output: Sequence[int]):
        self.x, self.window, self.output = x, window, output
        self.row = prod(output[1:])
        row_bytes = max(1, self.row * window.taps * x.shape[1] * x.element_size())
        rows = max(1, BLOCK_BYTES // row_bytes)
        self.step_rows = min(output[0], rows)
        self.step_images = max(1, min(x.shape[0], rows // output[0]))
        sizes = (size + 2 * p for size, p in zip(x.shape[2:], window.padding, strict=True))
        self._padded = x.new_zeros(self.step_images, *sizes, x.shape[1])
        self._sums: Tensor | None = None

    def buffers(self, count: int) -> list[Tensor]:
        """Tensors (N, K, c) for the positions of the largest block."""
        positions = self.step_images * self.step_rows * self.row
        shape = (positions, self.window.taps, self.x.shape[1])
        return [self.x.new_empty(shape) for _ in range(count)]

    def images(self) -> Iterator[slice]:
        """Slices of the batch."""
        return _slices(self.x.shape[0], self.step_images)

    def rows(self) -> Iterator[slice]:
        """Slices of the output's first dimension; there are several for single images only."""
        return _slices(self.output[0], self.step_rows)

    def span(self, images: slice, rows: slice) -> range:
        """The positions of a block, counted over the batch."""
        start = (images.start * self.output[0] + rows.start) * self.row
        size = (images.stop - images.start) * (rows.stop - rows.start) * self.row
        return range(start, start + size)

    def padded(self, x: Tensor) -> Tensor:
        """`x` (n, c, *size) in a zero border, channels last."""
        padded = self._padded[: len(x)]
        self.window.interior(padded).copy_(x.movedim(1, -1))
        return padded

    def zeros(self, padded: Tensor) -> Tensor:
        """Zeros like `padded` to add many terms to."""
        if self._sums is None:
            self._sums = torch.empty_like(self._padded, dtype=_accumulator(padded))
        return self._sums[: len(padded)].zero_()


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _rows(tensor: Tensor, dims: int, rows: slice) -> Tensor:
    """View of those rows of a tensor with `dims` trailing output dimensions."""
    return tensor.narrow(tensor.dim() - dims, rows.start, rows.stop - rows.start)


def _positions_first(m: Tensor, dims: int) -> Tensor:
    """(n, b, *taps, *out) as contiguous (N, b, *taps)."""
    taps = range(1, m.dim() - dims)
    m = m.movedim(tuple(taps), tuple(range(-len(taps), 0)))
    return m.reshape(-1, *m.shape[1 + dims :]).contiguous()


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


def _join(columns: Tensor, kernel: Tensor, y: Tensor) -> None:
    """Columns (N, K, c) times the kernel (g, o/g, K·c/g) into `y` (g, N, o/g)."""
    if len(kernel) == 1:
        torch.mm(columns.flatten(1), kernel[0].mT, out=y[0])
    else:
        y.copy_(torch.bmm(_split(columns, len(kernel)), kernel.mT))


def _expand(outgoing: Tensor, kernel: Tensor, out: Tensor) -> None:
    """The gradient of y (g, N, o/g) times the kernel into that of the columns, `out` (N, K, c)."""
    if len(kernel) == 1:
        torch.mm(outgoing[0], kernel[0], out=out.view(len(out), -1))
    else:
        columns = torch.bmm(outgoing, kernel).unflatten(2, (out.shape[1], -1))
        out.copy_(columns.permute(1, 2, 0, 3).flatten(2))


def _kernel_matrix(weight: Tensor, groups: int) -> Tensor:
    """(o, c/g, *kernel) as contiguous (g, o/g, K·c/g)."""
    return weight.flatten(2).mT.reshape(groups, weight.shape[0] // groups, -1)


def _kernel_tensor(matrix: Tensor, weight: Tensor, needed: bool) -> Tensor:
    """(g, o/g, K·c/g) as a tensor like `weight`, empty if it is not needed."""
    (result,) = empty_gradients((weight,), (needed,))
    if needed:
        matrix = matrix.reshape(weight.shape[0], -1, weight.shape[1]).mT
        result.copy_(matrix.reshape(weight.shape))
    return result


def _accumulator(tensor: Tensor) -> torch.dtype:
    """Sums over many terms are taken in float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)

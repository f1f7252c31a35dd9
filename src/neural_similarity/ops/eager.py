"""The eager form of both dynamic operators: torch's operations, for any type and device.

M is applied to patches, and the mixed patches (columns) are multiplied by the kernel. The batch is
processed in tiles, so that no tensor of K times the input's size stays in memory; backward computes
the columns again.

Letters: n images of a tile, *out positions of a tile (P in all), *kernel taps (K in all), c
channels, g groups of a grouped convolution, b blocks of channels that have an M of their own.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.operands import Entry, Gradients, Operands
from neural_similarity.ops.window import Window, promote_dtype

COLUMN_BYTES = 1 << 21
"""Size of a tile's columns: about a core's second-level cache."""


class Eager:
    """`operands.Implementation` in torch's operations; a diagonal and a full M differ in shape."""

    def forward(self, given: Operands) -> Tensor:
        y, given = given.empty_output(), _without_float16(given)
        kernel = _kernel_matrix(given)
        for tile in _tiles(given):
            columns = _mix(tile.patches, tile.m).to(kernel.dtype)
            target = tile.rows_of(y)
            target.copy_((kernel @ _by_group(columns, given.groups)).reshape(target.shape))
        return y

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        """Sums over tiles, and of patches that overlap, are in float32 at least."""
        results, given = given.empty_gradients(needs), _without_float16(given)
        kernel, groups = _kernel_matrix(given), given.groups
        of_kernel = torch.zeros_like(kernel, dtype=promote_dtype(kernel).dtype)
        of_padded = _pad(torch.zeros_like(given.x, dtype=of_kernel.dtype), given.window)
        for tile in _tiles(given):
            outgoing = _by_group(tile.rows_of(grad).to(kernel.dtype).flatten(2), groups)
            if needs[1]:
                columns = _by_group(_mix(tile.patches, tile.m).to(kernel.dtype), groups)
                of_kernel += (outgoing @ columns.mT).sum(0)
            if needs[0] or needs[2]:
                of_columns = promote_dtype(kernel.mT @ outgoing).reshape(tile.patches.shape)
                if needs[2]:
                    target = tile.rows_of(results[2])
                    target.copy_(
                        _m_gradient(of_columns, tile.patches, tile.m).reshape(target.shape)
                    )
                if needs[0]:
                    m = tile.m if tile.m.dim() == 4 else tile.m.transpose(2, 3)
                    tile.add_patches(_mix(of_columns, m), of_padded)
        if needs[0]:
            pads = zip(given.window.padding, of_padded.shape[2:], strict=True)
            results[0].copy_(of_padded[(..., *[slice(p, size - p) for p, size in pads])])
        if needs[1]:
            results[1].copy_(of_kernel.reshape(results[1].shape))
        return results


class _Tile:
    """Some images, or some rows of the output of one image: its patches and its M."""

    def __init__(self, given: Operands, padded: Tensor, images: slice, rows: slice):
        self.window, self.images, self.rows = given.window, images, rows
        (step, *_), (size, *_), (gap, *_) = (self.window[i] for i in (1, 0, 3))
        reach = (rows.stop - 1) * step + gap * (size - 1) + 1
        self.seen = slice(rows.start * step, reach)
        """The rows of the padded input that these see."""
        dims, blocks = len(self.window.kernel_size), given.m.shape[1]
        view = padded[images, :, self.seen]
        for dim, (k, s, d) in enumerate(zip(*self._geometry(), strict=True), start=2):
            view = view.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
        self.out = view.shape[2 : 2 + dims]
        # (n, c, *out, *kernel) to (n, b, c/b, K, P).
        taps = view.movedim(tuple(range(-dims, 0)), tuple(range(2, 2 + dims)))
        self.patches = taps.reshape(len(view), blocks, -1, self.window.taps, prod(self.out))
        self.m = self.rows_of(given.m).flatten(-dims)

    def _geometry(self) -> tuple[tuple[int, ...], ...]:
        return self.window.kernel_size, self.window.stride, self.window.dilation

    def rows_of(self, tensor: Tensor) -> Tensor:
        """View of the tile's part of a tensor (n, ..., *out)."""
        dim = tensor.dim() - len(self.window.kernel_size)
        return tensor[self.images].narrow(dim, self.rows.start, self.rows.stop - self.rows.start)

    def add_patches(self, patches: Tensor, padded: Tensor) -> None:
        """Add patches (n, b, c/b, K, P) onto what they see of a padded input."""
        target = padded[self.images, :, self.seen]
        taps = patches.flatten(1, 2).unflatten(-1, self.out).unbind(2)
        for tap, place in zip(taps, product(*map(range, self.window.kernel_size)), strict=True):
            sides = zip(place, *self._geometry()[1:], self.out, strict=True)
            view = [slice(i * d, i * d + s * (size - 1) + 1, s) for i, s, d, size in sides]
            target[(..., *view)] += tap


def _tiles(given: Operands) -> Iterator[_Tile]:
    """The batch in tiles whose columns take at most `COLUMN_BYTES`, or are a single row."""
    (n, channels, *_), (height, *rest) = given.x.shape, given.output_size
    row_bytes = max(1, prod(rest) * given.window.taps * channels * given.m.element_size())
    rows = max(1, COLUMN_BYTES // row_bytes)
    few, padded = max(1, rows // height), _pad(given.x, given.window)
    for image in range(0, n, few):
        for row in range(0, height, rows):
            images, part = slice(image, min(n, image + few)), slice(row, min(height, row + rows))
            yield _Tile(given, padded, images, part)


def _without_float16(given: Operands) -> Operands:
    """Operands of float16 in float32: M times the largest inputs would overflow."""
    if given.x.dtype != torch.float16:
        return given
    return given._replace(x=given.x.float(), weight=given.weight.float())


def _pad(x: Tensor, window: Window) -> Tensor:
    return F.pad(x, [side for amount in reversed(window.padding) for side in (amount, amount)])


def _kernel_matrix(given: Operands) -> Tensor:
    """The kernel (g, o/g, K·c/g)."""
    return given.weight.flatten(1).unflatten(0, (given.groups, -1))


def _by_group(maps: Tensor, groups: int) -> Tensor:
    """(n, ..., P) with any axes of channels and taps between, as (n, g, channels·taps/g, P)."""
    return maps.reshape(len(maps), groups, -1, maps.shape[-1])


def _mix(patches: Tensor, m: Tensor) -> Tensor:
    """M (n, b, K, P) or (n, b, K, K, P) times patches (n, b, c/b, K, P), in M's type."""
    if m.dim() == 4:
        return patches * m.unsqueeze(2)
    return torch.einsum("nbstp,nbctp->nbcsp", m, patches.to(m.dtype))


def _m_gradient(of_columns: Tensor, patches: Tensor, m: Tensor) -> Tensor:
    """The gradient of M, in its shape: column i of Wᵀ∇y times entry j of the patch, by position."""
    if m.dim() == 4:
        return (of_columns * patches).sum(2)
    return torch.einsum("nbcsp,nbctp->nbstp", of_columns, patches.to(of_columns.dtype))


ENTRY = Entry("eager", lambda _x, _taps: None, lambda _full: Eager())

"""A batch in tiles, so that intermediate results stay small."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from neural_similarity.ops.operands import Operands


class Tiles:
    """A batch in tiles, each of several images or of several rows of one image.

    The K times `channels` values per position of a tile take at most `limit` bytes, unless it is a
    single row.
    """

    def __init__(self, given: Operands, channels: int, limit: int):
        self.x, self.window, self.output = given.x, given.window, given.output_size
        self.row = prod(self.output[1:])
        row_bytes = max(1, self.row * self.window.taps * channels * self.x.element_size())
        rows = max(1, limit // row_bytes)
        self.step_rows = min(self.output[0], rows)
        self.step_images = max(1, min(self.x.shape[0], rows // self.output[0]))

    @cached_property
    def _padded(self) -> Tensor:
        return self._zero_border(self.x.shape[1], self.x.dtype)

    def _zero_border(self, channels: int, dtype: torch.dtype) -> Tensor:
        """Zeros for the padded images of a tile, channels last."""
        padded = zip(self.x.shape[2:], self.window.padding, strict=True)
        sizes = (size + 2 * p for size, p in padded)
        return self.x.new_zeros(self.step_images, *sizes, channels, dtype=dtype)

    def column_buffers(self, count: int) -> list[Tensor]:
        """Tensors (N, K, c) for the positions of the largest tile."""
        positions = self.step_images * self.step_rows * self.row
        shape = (positions, self.window.taps, self.x.shape[1])
        return [self.x.new_empty(shape) for _ in range(count)]

    def patch_rows(self) -> Tensor:
        """The patches (N, K) of the largest tile, as indices of rows of its `table`."""
        # Number the padded positions and take patches of the numbers, as of an image: the same
        # numbers serve every tile, because `table` begins where the tile does.
        numbers = number_positions((*self._padded.shape[:-1], 1), self.x.device)
        first = self.window.rows_view(numbers, slice(0, self.step_rows))
        return self.window.patch_view(first).reshape(-1, self.window.taps)

    def patch_inputs(self) -> Tensor:
        """The patches (N, K) of all rows, as indices of input positions from 1; 0 is outside."""
        # As `patches`, but over inputs without a border, whose zeros share the number 0.
        shape = (self.step_images, *self.x.shape[2:], 1)
        numbers = self._zero_border(1, torch.int32)
        self.window.interior_view(numbers).copy_(number_positions(shape, self.x.device) + 1)
        return self.window.patch_view(numbers).reshape(-1, self.window.taps)

    def seen_positions(self, x: Tensor, rows: slice) -> tuple[int, Tensor]:
        """The index of the first position that the output's rows see, and all of these (R, c)."""
        first, last = self._input_rows(rows)
        return first * prod(x.shape[3:]), x[:, :, first:last].movedim(1, -1).flatten(0, -2)

    def most_inputs(self) -> int:
        """The largest number of input positions that a tile sees."""
        reach = self.window.dilation[0] * (self.window.kernel_size[0] - 1)
        rows = min(self.x.shape[2], self.step_rows + reach)
        return self.step_images * rows * prod(self.x.shape[3:])

    def _input_rows(self, rows: slice) -> tuple[int, int]:
        """First and one past the last row of the input that the output's rows see at stride 1."""
        # Output row r sees input rows r - before to r - before + reach, clipped to the input.
        (size, *_), before = self.x.shape[2:], self.window.padding[0]
        reach = self.window.dilation[0] * (self.window.kernel_size[0] - 1)
        return max(0, rows.start - before), max(0, min(size, rows.stop + reach - before))

    def row_table(self, padded: Tensor, rows: slice) -> Tensor:
        """`padded` as rows of channels (R, c), from the first that the tile sees."""
        return padded[:, rows.start * self.window.stride[0] :].flatten(0, -2)

    def tile_view(self, tensor: Tensor, images: slice, rows: slice) -> Tensor:
        """View of the tile's part of a tensor (n, ..., *out)."""
        # The first of the output's dimensions, whatever stands between it and the batch.
        dim = tensor.dim() - len(self.output)
        return tensor[images].narrow(dim, rows.start, rows.stop - rows.start)

    def image_slices(self) -> Iterator[slice]:
        """The slices of the batch that tiles take."""
        return _step_slices(self.x.shape[0], self.step_images)

    def row_slices(self) -> Iterator[slice]:
        """The slices of the output's first dimension; only single images have several."""
        return _step_slices(self.output[0], self.step_rows)

    def position_span(self, images: slice, rows: slice) -> range:
        """The positions of a tile, counted over the batch."""
        start = (images.start * self.output[0] + rows.start) * self.row
        size = (images.stop - images.start) * (rows.stop - rows.start) * self.row
        return range(start, start + size)

    def pad_input(self, x: Tensor) -> Tensor:
        """`x` (n, c, *size) in a zero border, channels last."""
        padded = self._padded[: len(x)]
        self.window.interior_view(padded).copy_(x.movedim(1, -1))
        return padded


def _step_slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def number_positions(shape: Sequence[int], device: torch.device) -> Tensor:
    """Consecutive numbers from 0."""
    return torch.arange(prod(shape), dtype=torch.int32, device=device).view(shape)

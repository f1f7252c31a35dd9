"""Launching the kernels: operands in their order, sizes of shared memory, grids."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.ops.halo.driver import Argument, launch_kernel
from neural_similarity.ops.operands import Gradients, Operands

TILE = 8
"""Positions along a side of a tile."""
MOST_COLUMNS = 64
"""The most channels of the result that a block computes, and that it sums over at a time."""
UNIT = 16
"""Channels that a full M mixes at a time."""
WARPGROUPS = {
    "forward": 3,
    "gradients": 2,
    "weight_gradient": 3,
    "hidden": 3,
    "predicted": 2,
    "hidden_gradient": 3,
    "input_gradient": 3,
    "layer_weight_gradients": 3,
    "weight_sums": 2,
    "full_forward": 3,
    "full_gradient": 2,
    "full_m_gradient": 2,
    "full_weight_gradient": 2,
}
"""Warpgroups of a block: as many as have registers and memory for all, one for each row of taps, or
one for each unit of channels."""
WARPGROUP = 128
"""Threads."""
PIECE, CHUNK, TILE_CHUNK = 16, 101 * 16, 65 * 16
"""Bytes of a pixel's 8 channels, of a halo's and of a tile's."""
_TAP = TILE * TILE * 2
"""Bytes of a channel of a tile."""
M_BYTES = {"tile": 64 * 36, "ring": 10 * 104 * 4, "full tile": 64 * 324, "full ring": 10 * 824 * 4}
"""Of a tile's M, alone and with a ring around it: `Similarities::BYTES`."""


class KernelTask(NamedTuple):
    """An operator's launches: blocks are as many as multiprocessors, and share the tiles."""

    given: Operands
    multiprocessors: int
    definitions: tuple[str, ...] = ()
    """For all kernels, beside `kernel_definitions`."""

    def forward(self) -> Tensor:
        x, weight, m, *_ = self.given
        y = x.new_empty(len(x), *self.given.output_size, len(weight))
        if y.numel():
            operands = pixels_first(x), filters_first(weight), _entries_last(m), y
            if self._is_full():
                self._launch_mixing("full_forward", "full tile", operands)
            else:
                self.launch_tiles("forward", 2 * M_BYTES["tile"], operands)
        return y.movedim(-1, 1)

    def backward(self, grad: Tensor, needs: Sequence[bool]) -> Gradients:
        gradients = grad_x, grad_weight, grad_m = self.given.empty_gradients(needs)
        if not grad.numel():
            for gradient in gradients:
                gradient.zero_()
            return gradients
        grad = pixels_first(grad)
        if self._is_full():
            self._write_full_gradients(grad, grad_x, grad_m)
        elif needs[0] or needs[2]:
            self._write_data_gradients(grad, grad_x, grad_m)
        if needs[1]:
            total = self._weight_gradient_parts(grad).sum(0)
            grad_weight.copy_(total.mT.reshape(grad_weight.shape))
        return gradients

    def _is_full(self) -> bool:
        return self.given.m.dim() > 5

    def _write_data_gradients(self, grad: Tensor, grad_x: Tensor, grad_m: Tensor) -> None:
        """Both come from one product; one that is not needed is empty."""
        x, weight, m, *_ = self.given
        pixels, entries = pixels_first(x), _entries_last(m)
        found = grad_x.movedim(1, -1) if grad_x.numel() else torch.empty_like(pixels)
        parts = self._m_gradient_parts(entries)
        operands = grad, filters_first(weight), entries, None, pixels, found, parts
        self.launch_tiles("gradients", 2 * M_BYTES["ring"], operands)
        _write_m_gradient(grad_m, parts)

    def _write_full_gradients(self, grad: Tensor, grad_x: Tensor, grad_m: Tensor) -> None:
        """Those of x and M that are not empty."""
        x, weight, m, *_ = self.given
        filters, entries = filters_first(weight), _entries_last(m)
        if grad_x.numel():
            operands = grad, filters, entries, grad_x.movedim(1, -1)
            self._launch_mixing("full_gradient", "full ring", operands)
        if grad_m.numel():
            parts = self._m_gradient_parts(entries)
            halo = min(x.shape[1], MOST_COLUMNS) // 8 * CHUNK
            operands = grad, filters, pixels_first(x), parts
            self.launch_tiles("full_m_gradient", 2 * halo, operands)
            _write_m_gradient(grad_m, parts)

    def _m_gradient_parts(self, entries: Tensor) -> Tensor:
        """Uninitialised, one part for each block of channels."""
        return entries.new_empty(-(-self.given.x.shape[1] // MOST_COLUMNS), *entries.shape)

    def launch_tiles(
        self,
        name: str,
        own_bytes: int,
        operands: Sequence[Tensor | None],
        *numbers: float,
        block_bytes: int = 0,
    ) -> None:
        """A kernel of taps.cuh, whose warpgroups have `own_bytes` beside their halos."""
        depth, columns = self._channels(name)
        wide, part = min(columns, MOST_COLUMNS), min(depth, MOST_COLUMNS)
        stage = TILE * TILE * (2 * wide + PIECE)
        own = 2 * max(part // 8 * CHUNK, stage) + own_bytes
        weights = 9 * part * wide * 2 + block_bytes
        self._launch_columns(name, columns // wide, weights, own, operands, *numbers)

    def _launch_mixing(self, name: str, similarities: str, operands: Sequence[Tensor]) -> None:
        """A kernel of full_tiles.cuh."""
        depth, columns = self._channels(name)
        wide, places = min(columns, MOST_COLUMNS), depth // UNIT if depth <= MOST_COLUMNS else 2
        own = 2 * UNIT // 8 * CHUNK + M_BYTES[similarities] + 9 * UNIT * _TAP
        self._launch_columns(name, columns // wide, places * 9 * UNIT * wide * 2, own, operands)

    def _channels(self, name: str) -> tuple[int, int]:
        """Those that are summed over, and those of the result."""
        channels, outputs = self.given.x.shape[1], self.given.weight.shape[0]
        backwards = name.endswith(("gradient", "gradients"))
        return (outputs, channels) if backwards else (channels, outputs)

    def _launch_columns(
        self,
        name: str,
        across: int,
        weights: int,
        own: int,
        operands: Sequence[Tensor | None],
        *numbers: float,
    ) -> None:
        """Blocks of the second axis take columns of the result."""
        grid = self.blocks(across, WARPGROUPS[name]), across
        self.launch(name, grid, weights + WARPGROUPS[name] * own, operands, *numbers)

    def _weight_gradient_parts(self, grad: Tensor) -> Tensor:
        """(blocks, o, 9, c), float32."""
        x, weight, m, *_ = self.given
        full, channels, outputs = self._is_full(), x.shape[1], len(weight)
        name = "full_weight_gradient" if full else "weight_gradient"
        wide = WARPGROUPS[name] * UNIT if full else min(channels, MOST_COLUMNS)
        high = min(outputs, MOST_COLUMNS)
        across = channels // wide * (outputs // high)
        grid = self.blocks(across), across
        parts = x.new_empty(grid[0], outputs, 9, channels, dtype=torch.float32)
        buffer = wide // 8 * CHUNK + high // 8 * TILE_CHUNK
        buffer += M_BYTES["full tile" if full else "tile"]
        shared_bytes = 2 * buffer + full * 9 * wide * _TAP
        self.launch(name, grid, shared_bytes, (grad, pixels_first(x), _entries_last(m), parts))
        return parts

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        shared_bytes: int,
        operands: Sequence[Tensor | None],
        *numbers: float,
    ) -> None:
        """A kernel with these operands, the sizes of x, and numbers."""
        images, _, height, width = self.given.x.shape
        arguments: tuple[Argument, ...] = (*operands, images, height, width, *numbers)
        self.launch_bare(name, grid, shared_bytes, arguments)

    def launch_bare(
        self, name: str, grid: tuple[int, int], shared_bytes: int, arguments: Sequence[Argument]
    ) -> None:
        """A kernel with no other arguments."""
        x, weight, *_ = self.given
        own = kernel_definitions(name, x.shape[1], weight.shape[0], x.dtype)
        threads = WARPGROUP * WARPGROUPS[name]
        launch_kernel(name, own + self.definitions, grid, threads, shared_bytes, arguments)

    def blocks(self, across: int, tiles: int = 1) -> int:
        """The number of blocks along the first axis, each of so many tiles at a time."""
        images, _, height, width = self.given.x.shape
        most = -(-images * -(-height // TILE) * -(-width // TILE) // tiles)
        return max(1, min(most, self.multiprocessors // across))


def make_task(given: Operands) -> KernelTask:
    """The operator on its whole GPU."""
    device = torch.cuda.get_device_properties(given.x.device)
    return KernelTask(given, device.multi_processor_count)


@cache
def kernel_definitions(
    name: str, channels: int, outputs: int, dtype: torch.dtype
) -> tuple[str, ...]:
    """What a kernel is compiled for."""
    half = ("FLOAT16",) if dtype == torch.float16 else ()
    return f"CHANNELS={channels}", f"OUTPUTS={outputs}", f"GROUPS={WARPGROUPS[name]}", *half


def pixels_first(maps: Tensor) -> Tensor:
    """(n, c, h, w) as dense (n, h, w, c)."""
    return aligned(maps.movedim(1, -1).contiguous())


def filters_first(weight: Tensor) -> Tensor:
    """(o, c, 3, 3) as dense (o, 9, c)."""
    return aligned(weight.flatten(2).mT.contiguous())


def _entries_last(m: Tensor) -> Tensor:
    """M (n, 1, *taps, h, w) as dense (n, h, w, 9) or (n, h, w, 81)."""
    return aligned(m.flatten(1, -3).movedim(1, -1).contiguous())


def _write_m_gradient(grad_m: Tensor, parts: Tensor) -> None:
    """The sum of parts (blocks, n, h, w, entries) as the gradient of M, unless that is empty."""
    if grad_m.numel():
        total = parts.sum(0) if len(parts) > 1 else parts[0]
        grad_m.copy_(total.movedim(-1, 1).view_as(grad_m))


def aligned(dense: Tensor) -> Tensor:
    """Copies begin at multiples of their 16 bytes."""
    return dense.clone() if dense.data_ptr() % PIECE else dense

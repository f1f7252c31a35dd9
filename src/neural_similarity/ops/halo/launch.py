"""Launching the kernels: operands in their order, sizes of shared memory, grids."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.ops.halo.driver import launch_kernel
from neural_similarity.ops.operands import Gradients, Operands

TILE = 8
"""Positions along a side of a tile."""
MOST_COLUMNS = 64
"""The most channels of the result that a block computes, and that it sums over at a time."""
WARPGROUPS = {"forward": 3, "gradients": 2, "weight_gradient": 3}
"""Warpgroups of a block: as many as have registers for all, or one for each row of taps."""
WARPGROUP = 128
"""Threads."""
_PIECE, _CHUNK = 16, 101 * 16
"""Bytes of a pixel's 8 channels, and of a halo's."""
_M_BYTES = {"forward": 64 * 36, "gradients": 10 * 16 * 36, "weight_gradient": 64 * 36}
"""Of a tile's M, for the gradients with a ring around it."""


class KernelTask(NamedTuple):
    """An operator's launches: blocks are as many as multiprocessors, and share the tiles."""

    given: Operands
    multiprocessors: int

    def forward(self) -> Tensor:
        """`Implementation.forward`."""
        x, weight, m, *_ = self.given
        y = x.new_empty(len(x), *self.given.output_size, len(weight))
        if y.numel():
            operands = _pixels_first(x), _filters_first(weight), _entries_last(m), y
            self._launch_tiles("forward", operands)
        return y.movedim(-1, 1)

    def backward(self, grad: Tensor, needs: Sequence[bool]) -> Gradients:
        """`Implementation.backward`."""
        gradients = grad_x, grad_weight, grad_m = self.given.empty_gradients(needs)
        if not grad.numel():
            for gradient in gradients:
                gradient.zero_()
            return gradients
        grad = _pixels_first(grad)
        if needs[0] or needs[2]:
            self._write_data_gradients(grad, grad_x, grad_m)
        if needs[1]:
            total = self._weight_gradient_parts(grad).sum(0)
            grad_weight.copy_(total.movedim(0, -1).reshape(grad_weight.shape))
        return gradients

    def _write_data_gradients(self, grad: Tensor, grad_x: Tensor, grad_m: Tensor) -> None:
        """Both come from one product; one that is not needed is empty."""
        x, weight, m, *_ = self.given
        pixels, entries = _pixels_first(x), _entries_last(m)
        found = grad_x.movedim(1, -1) if grad_x.numel() else torch.empty_like(pixels)
        parts = m.new_empty(-(-x.shape[1] // MOST_COLUMNS), *entries.shape)
        operands = grad, _filters_first(weight), entries, pixels, found, parts
        self._launch_tiles("gradients", operands)
        if grad_m.numel():
            total = parts.sum(0) if len(parts) > 1 else parts[0]
            grad_m.copy_(total.movedim(-1, 1).unsqueeze(1))

    def _launch_tiles(self, name: str, operands: Sequence[Tensor]) -> None:
        """Blocks of the second axis take columns of the result."""
        channels = self.given.x.shape[1], len(self.given.weight)
        depth, columns = channels if name == "forward" else channels[::-1]
        wide, part = min(columns, MOST_COLUMNS), min(depth, MOST_COLUMNS)
        stage = TILE * TILE * (2 * wide + _PIECE)
        own = 2 * max(part // 8 * _CHUNK, stage) + 2 * _M_BYTES[name]
        across, most = columns // wide, -(-self._tile_count() // WARPGROUPS[name])
        grid = self._blocks(across, most), across
        self._launch(name, grid, 9 * part * wide * 2 + WARPGROUPS[name] * own, operands)

    def _weight_gradient_parts(self, grad: Tensor) -> Tensor:
        """(blocks, 9, o, c), float32."""
        name, (x, weight, m, *_) = "weight_gradient", self.given
        channels = x.shape[1], len(weight)
        across = prod(-(-size // MOST_COLUMNS) for size in channels)
        grid = self._blocks(across, self._tile_count()), across
        parts = x.new_empty(grid[0], 9, *weight.shape[:2], dtype=torch.float32)
        wide, high = (min(size, MOST_COLUMNS) // 8 for size in channels)
        buffer = wide * _CHUNK + high * (TILE * TILE + 1) * _PIECE + _M_BYTES[name]
        self._launch(name, grid, 2 * buffer, (grad, _pixels_first(x), _entries_last(m), parts))
        return parts

    def _launch(
        self, name: str, grid: tuple[int, int], shared_bytes: int, operands: Sequence[Tensor]
    ) -> None:
        images, channels, *size = self.given.x.shape
        definitions = kernel_definitions(name, channels, len(self.given.weight), operands[0].dtype)
        threads = WARPGROUP * WARPGROUPS[name]
        launch_kernel(name, definitions, grid, threads, shared_bytes, (*operands, images, *size))

    def _tile_count(self) -> int:
        sides = (-(-side // TILE) for side in self.given.output_size)
        return len(self.given.x) * prod(sides)

    def _blocks(self, across: int, most: int) -> int:
        """The number of blocks along the first axis."""
        return max(1, min(most, self.multiprocessors // across))


def make_task(given: Operands) -> KernelTask:
    """The operator on its whole GPU."""
    device = torch.cuda.get_device_properties(given.x.device)
    return KernelTask(given, device.multi_processor_count)


def kernel_definitions(
    name: str, channels: int, outputs: int, dtype: torch.dtype
) -> tuple[str, ...]:
    """What a kernel is compiled for."""
    half = ("FLOAT16",) if dtype == torch.float16 else ()
    return f"CHANNELS={channels}", f"OUTPUTS={outputs}", f"GROUPS={WARPGROUPS[name]}", *half


def _pixels_first(maps: Tensor) -> Tensor:
    """(n, c, h, w) as dense (n, h, w, c)."""
    return _aligned(maps.movedim(1, -1).contiguous())


def _filters_first(weight: Tensor) -> Tensor:
    """(o, c, 3, 3) as dense (o, 9, c)."""
    return _aligned(weight.flatten(2).mT.contiguous())


def _entries_last(m: Tensor) -> Tensor:
    """M (n, 1, 9, h, w) as dense (n, h, w, 9)."""
    return _aligned(m[:, 0].movedim(1, -1).contiguous())


def _aligned(dense: Tensor) -> Tensor:
    """Copies begin at multiples of their 16 bytes."""
    return dense.clone() if dense.data_ptr() % _PIECE else dense

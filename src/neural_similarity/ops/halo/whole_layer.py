"""Launching the kernels of a layer with its predictor: two forward, five backward."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.ops.halo import WINDOW
from neural_similarity.ops.halo.launch import (
    CHUNK,
    M_BYTES,
    MOST_COLUMNS,
    PIECE,
    TILE,
    TILE_CHUNK,
    WARPGROUP,
    WARPGROUPS,
    KernelTask,
    aligned,
    filters_first,
    pixels_first,
)
from neural_similarity.ops.operands import LayerTensors, Operands

_HALO_ENERGIES, _RING_ENERGIES = 100 * 4, 960
"""Bytes of a halo's, and of a tile's with a ring around it: `Similarities<1, 1>::BYTES`."""
_LAST_FILTERS = 16
"""Filters of the second convolution in shared memory, and channels of M's gradient there."""


class LayerTask(NamedTuple):
    """A layer with a diagonal M, and the launches of its kernels.

    Results are uninitialised if there are no multiprocessors.
    """

    given: LayerTensors
    multiprocessors: int

    def forward(self, eps: float, factor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, the hidden map h, the raw numbers r of M, and the norms of patches."""
        y, hidden, raw, norms = results = self._empty_results()
        if y.numel() and self.multiprocessors:
            self.write_hidden_map(hidden, norms, eps, factor)
            self._write_output(hidden, y, raw)
        return results

    def write_hidden_map(self, hidden: Tensor, norms: Tensor, eps: float, factor: float) -> None:
        """The hidden map, and the norms of patches that it is divided by."""
        results = hidden.movedim(1, -1), norms.movedim(1, -1)
        operands = pixels_first(self.given.x), filters_first(self.given.first), *results
        self._first_task().launch_tiles("hidden", 2 * _HALO_ENERGIES, operands, eps, factor)

    def _write_output(self, hidden: Tensor, y: Tensor, raw: Tensor) -> None:
        """What the hidden map predicts, and y for the M that follows from it."""
        x, weight, bias, first, last, last_bias, gain = self.given
        own = 2 * (first.shape[0] // 8 * CHUNK + M_BYTES["tile"])
        outer = pixels_first(x), filters_first(weight)
        inner = pixels_first(hidden), filters_first(last), last_bias, gain
        results = y.movedim(1, -1), raw.movedim(1, -1)
        operands = *outer, *inner, None if bias is None else aligned(bias), *results
        self._task().launch_tiles("predicted", own, operands, block_bytes=self._last_bytes())

    def _empty_results(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = self.given.x

        def maps(channels: int, dtype: torch.dtype) -> Tensor:
            n, _, *size = x.shape
            return x.new_empty(n, *size, channels, dtype=dtype).movedim(-1, 1)

        narrow, wide = x.dtype, torch.float32
        sizes = self.given.weight.shape[0], self.given.first.shape[0]
        return maps(sizes[0], narrow), maps(sizes[1], narrow), maps(9, wide), maps(1, wide)

    def backward(
        self, grad: Tensor, kept: Sequence[Tensor], factor: float, needs: Sequence[bool]
    ) -> LayerTensors:
        """Gradients, by that of y and what `forward` returned beside y; `needs` has all seven.

        What it leaves out is uninitialised.
        """
        results = self._empty_gradients()
        if not self.multiprocessors:
            return results
        if not grad.numel():
            return LayerTensors._make(one if one is None else one.zero_() for one in results)
        grad, of_x = pixels_first(grad), results.x.movedim(1, -1)
        hidden, raw, norms = map(pixels_first, kept)
        of_hidden = last_parts = None
        if needs[0] or any(needs[3:]):
            of_m = self._data_gradients(grad, raw, of_x)
            maps = of_m, hidden, raw, norms
            of_hidden, energies, last_parts = self._hidden_gradient(maps, factor)
            if needs[0]:
                self._add_input_gradient(of_hidden, energies, of_x)
        parts = self._weight_parts(grad, of_hidden, raw, needs)
        self._add_parts((*parts, last_parts), results)
        return results

    def _empty_gradients(self) -> LayerTensors:
        x, weight, _, first, last, last_bias, gain = self.given
        maps = (
            torch.empty_like(tensor, memory_format=torch.channels_last)
            for tensor in (x, weight, first, last)
        )
        of_x, of_weight, of_first, of_last = maps
        of_last_bias = None if last_bias is None else torch.empty_like(last_bias)
        others = of_first, of_last, of_last_bias, torch.empty_like(gain)
        return LayerTensors(of_x, of_weight, None, *others)

    def _data_gradients(self, grad: Tensor, raw: Tensor, of_x: Tensor) -> Tensor:
        """That of M, by the operator; that of x is stored."""
        x, weight, *_, gain = self.given
        parts = raw.new_empty(max(1, x.shape[1] // MOST_COLUMNS), *raw.shape)
        operands = grad, filters_first(weight), raw, gain, pixels_first(x), of_x, parts
        self._task().launch_tiles("gradients", 2 * M_BYTES["ring"], operands)
        return parts.sum(0) if len(parts) > 1 else parts[0]

    def _hidden_gradient(
        self, maps: Sequence[Tensor], factor: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of f W₁ * x, what the norms give x, and parts of W₂'s, b₂'s and g's."""
        of_m, hidden, raw, norms = maps
        task, name, channels = self._task(), "hidden_gradient", hidden.shape[-1]
        groups = WARPGROUPS[name]
        own = max(channels // 8 * TILE_CHUNK, TILE * TILE * (2 * channels + PIECE))
        own = 2 * (own + M_BYTES["ring"]) + _LAST_FILTERS // 8 * CHUNK
        of_hidden, energies = torch.empty_like(hidden), torch.empty_like(norms)
        blocks = task.blocks(1, groups)
        parts = norms.new_empty(blocks, 81 * channels + 18)
        given = of_m, raw, filters_first(self.given.last), self.given.gain, hidden, norms
        shared_bytes = self._last_bytes() + groups * own
        operands = *given, of_hidden, energies, parts
        task.launch(name, (blocks, 1), shared_bytes, operands, factor)
        return of_hidden, energies, parts

    def _add_input_gradient(self, of_hidden: Tensor, energies: Tensor, of_x: Tensor) -> None:
        """What the predictor adds to the gradient of x."""
        x, first = self.given.x, self.given.first
        operands = of_hidden, filters_first(first), energies, pixels_first(x), of_x
        self._first_task().launch_tiles("input_gradient", 2 * _RING_ENERGIES, operands)

    def _weight_parts(
        self, grad: Tensor, of_hidden: Tensor | None, raw: Tensor, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """Parts (blocks, o, 9, c) of the gradients of W and W₁, those that are needed."""
        x, weight, _, first, *_, gain = self.given
        task, outputs, channels = self._task(), weight.shape[0], x.shape[1]
        columns, wide = max(1, outputs // MOST_COLUMNS), min(channels, MOST_COLUMNS)
        wanted, high = (needs[1], needs[3]), (min(outputs, MOST_COLUMNS), first.shape[0])
        if not any(wanted):
            return [None, None]
        across = (columns * needs[1] + needs[3]) * (channels // wide)
        blocks = task.blocks(across)
        parts = [
            x.new_empty(blocks, kernel.shape[0], 9, channels, dtype=torch.float32) if need else None
            for kernel, need in zip((weight, first), wanted, strict=True)
        ]
        most = max(rows for rows, need in zip(high, wanted, strict=True) if need)
        buffer = wide // 8 * CHUNK + most // 8 * TILE_CHUNK + M_BYTES["tile"]
        operands = grad, of_hidden, pixels_first(x), raw, gain, *parts
        skipped = 0 if needs[1] else columns * (channels // wide)
        task.launch("layer_weight_gradients", (blocks, across), 2 * buffer, operands, skipped)
        return parts

    def _add_parts(self, parts: Sequence[Tensor | None], results: LayerTensors) -> None:
        """The gradients of weights, those that have parts."""
        if not any(part is not None for part in parts):
            return
        counts = [0 if part is None else len(part) for part in parts]
        x, weight, _, first, *_ = self.given
        numbers = 9 * x.shape[1] * (weight.shape[0] + first.shape[0]) + 81 * first.shape[0] + 18
        grid = -(-numbers // (WARPGROUP * WARPGROUPS["weight_sums"])), 1
        dense = (one.movedim(1, -1) for one in (results.weight, results.first, results.last))
        operands = *parts, *dense, results.last_bias, results.gain
        self._task().launch_bare("weight_sums", grid, 0, (*operands, *counts))

    def _task(self) -> KernelTask:
        """The kernels compiled for the whole layer."""
        x, weight, _, first, *_, gain = self.given
        narrow = () if gain.dtype == torch.float32 else ("NARROW_GAINS",)
        definitions = "PREDICTED", f"HIDDEN={first.shape[0]}", *narrow
        return KernelTask(Operands(x, weight, x, WINDOW, 1), self.multiprocessors, definitions)

    def _first_task(self) -> KernelTask:
        """Those of the predictor's first convolution."""
        x, first = self.given.x, self.given.first
        return KernelTask(Operands(x, first, x, WINDOW, 1), self.multiprocessors)

    def _last_bytes(self) -> int:
        """Of the second convolution's weights in shared memory."""
        return 9 * self.given.first.shape[0] * _LAST_FILTERS * 2


def make_task(given: LayerTensors) -> LayerTask:
    """The layer on its whole GPU."""
    device = torch.cuda.get_device_properties(given.x.device)
    return LayerTask(given, device.multi_processor_count)

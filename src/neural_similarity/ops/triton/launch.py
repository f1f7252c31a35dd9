"""Launching the kernels: allocation, strides, tile sizes and grids."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from math import gcd, prod
from threading import Lock
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from neural_similarity.ops.operands import Gradients, Operands, channels_last
from neural_similarity.ops.triton import is_interpreted, kernels, places
from neural_similarity.ops.window import Window

PROGRAMS = 512
"""Approximate number of programs that share the sum over positions in the weight's gradient."""
LEAST_SPAN = 512
"""The fewest positions that each of these programs takes."""
WARP_GROUP = 64
"""Rows of the matrix products of a Hopper GPU's four warps."""
MOST_TOGETHER = 5
"""Most taps of a kernel row per program of the weight's gradient; each tap has a sum of its own."""
FAR = 2**31 - 2**24
"""Tensors with offsets from here on use int64; some masked offsets lie beyond the tensor."""
_SMALL = {"ROWS": 32, "num_warps": 4, "num_stages": 2}
_NARROW = {"ROWS": 32, "num_warps": 4, "num_stages": 3}
_MEDIUM = {"ROWS": 64, "num_warps": 4, "num_stages": 3}
_WIDE = {"ROWS": 128, "num_warps": 4, "num_stages": 3}
_EIGHT = {"ROWS": 32, "num_warps": 8, "num_stages": 2}
_MANY = {"ROWS": 64, "num_warps": 8, "num_stages": 2}
CONFIGS = {
    (2, False): (_MEDIUM, _NARROW, _WIDE),
    (2, True): (_SMALL, _NARROW, _MEDIUM),
    (4, False): (_EIGHT, _MANY),
    (4, True): (_MANY, _SMALL),
}
"""The configurations that tuning tries, by bytes per element and whether M is full.

The first is used while torch must be deterministic, and spills no registers. Those of two bytes
were the fastest of eight, each for one kernel, on an H200 with 64 channels at 32×32; those of
float32 are unmeasured. Another configuration would cost a second or two at the first step, for each
kernel and number of channels.
"""
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

Constants = dict[str, Any]


class LaunchPlan(NamedTuple):
    """A convolution as the kernels take it."""

    x: places.ImageLayout
    weight: places.Filters
    m: places.Similarities
    y: places.ImageLayout
    """y, or its gradient."""
    sizes: places.LaunchSizes
    channels: places.Channels
    frame: places.WindowFrame
    constants: Constants
    full: bool

    @property
    def output_positions(self) -> int:
        """Output positions of the batch."""
        return self.sizes.images * self.sizes.out_height * self.sizes.out_width

    def tile_constants(self, inputs: int, outputs: int) -> Constants:
        """The constants of a kernel, with tiles of at most these channels; half in float32."""
        share = self.constants["DTYPE"].primitive_bitwidth // 16
        return self.constants | {
            "INPUTS": _tile_size(self.channels.run, inputs // share),
            "OUTPUTS": _tile_size(self.channels.outputs, outputs // share),
        }

    def group_tiles(self, inputs: int, outputs: int) -> Constants:
        """`tile_constants`, and how many tiles a group's outputs are."""
        constants = self.tile_constants(inputs, outputs)
        return constants | {"TILES": triton.cdiv(self.channels.outputs, constants["OUTPUTS"])}

    def piece_count(self, channels: int, constants: Constants) -> int:
        """The number of pieces in `channels` channels."""
        return channels // self.channels.run * triton.cdiv(self.channels.run, constants["INPUTS"])


def plan_launch(given: Operands, y: Tensor) -> LaunchPlan:
    """The plan for M (n, b, K, *out) or (n, b, K, K, *out), and y or its gradient."""
    x, weight, m, window, groups = given
    (height, width), out = pair_sizes(1, x.shape[2:]), pair_sizes(1, given.output_size)
    group, block, full = x.shape[1] // groups, x.shape[1] // m.shape[1], m.dim() > x.dim() + 1
    frame, filters = frame_window(window, x, weight, m, y), channels_last(weight.flatten(2))
    allowed = torch.backends.cudnn.conv.fp32_precision  # pyright: ignore[reportAttributeAccessIssue]
    tf32 = x.dtype == torch.float32 and allowed == "tf32"
    return LaunchPlan(
        kernel_images(x),
        places.Filters(filters, *filters.stride()),
        _kernel_similarities(m[None], full),
        kernel_images(y),
        places.LaunchSizes(x.shape[0], height, width, *out),
        places.Channels(group, weight.shape[0] // groups, block, gcd(group, block)),
        frame,
        {"FRAME": frame, "DTYPE": _TYPES[x.dtype], "PRECISION": "tf32" if tf32 else "ieee"},
        full,
    )


def forward(given: Operands) -> Tensor:
    x, weight, *_, groups = dense = given._replace(x=channels_last(given.x))
    y = x.new_empty(len(x), *given.output_size, len(weight)).movedim(-1, 1)
    plan = plan_launch(dense, y)
    constants = plan.tile_constants(32, 128) if plan.full else plan.tile_constants(64, 64)
    grid = (
        _row_tiles(plan.output_positions),
        groups * triton.cdiv(plan.channels.outputs, constants["OUTPUTS"]),
    )
    operands = plan.x, plan.weight, plan.m, plan.y
    if y.numel():
        _launch_kernel(kernels.forward, plan, operands, constants | {"FULL": plan.full}, grid)
    return given.in_format(y)


def backward(grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
    dense = given._replace(x=channels_last(given.x))
    gradients = grad_x, grad_weight, grad_m = dense.empty_gradients(needs)
    if grad.numel():
        _write_gradients(plan_launch(dense, channels_last(grad)), dense, gradients, needs)
    else:
        for gradient in gradients:
            gradient.zero_()
    if needs[0] and dense.x is not given.x:
        grad_x = torch.empty_like(given.x).copy_(grad_x)
    return grad_x, grad_weight, grad_m


def _write_gradients(
    plan: LaunchPlan, given: Operands, gradients: Gradients, needs: Sequence[bool]
) -> None:
    (grad_x, grad_weight, grad_m), (needs_x, needs_weight, needs_m) = gradients, needs
    if needs_weight:
        _weight_gradient(plan, given, grad_weight)
    if not plan.full and (needs_x or needs_m):
        _diagonal_gradients(plan, given, gradients, needs)
    if plan.full and needs_x:
        _full_data_gradient(plan, given, grad_x)
    if plan.full and needs_m:
        _full_similarity_gradient(plan, given, grad_m)


def _weight_gradient(plan: LaunchPlan, given: Operands, result: Tensor) -> None:
    x, weight, *_ = given
    taps = prod(weight.shape[2:])
    constants = plan.tile_constants(32 if plan.full else 64, 64)
    together = _taps_together(plan, constants["OUTPUTS"])
    constants |= {"FULL": plan.full, "TOGETHER": together}
    programs = taps // together * plan.piece_count(x.shape[1], constants)
    tiles = triton.cdiv(plan.channels.outputs, constants["OUTPUTS"])
    shares = min(PROGRAMS // (programs * tiles), plan.output_positions // LEAST_SPAN)
    rows = max(config["ROWS"] for config in CONFIGS[x.element_size(), plan.full])
    span = triton.cdiv(triton.cdiv(plan.output_positions, max(1, shares)), rows) * rows
    shares = triton.cdiv(plan.output_positions, span)
    parts = weight.new_empty(shares, taps, *weight.shape[:2], dtype=torch.float32)
    arguments = plan.y, plan.x, plan.m, places.PartLayout(parts, *parts.stride()), span
    _launch_kernel(kernels.weight_gradient, plan, arguments, constants, (programs, tiles, shares))
    result.copy_(parts.sum(0).movedim(0, -1).reshape(weight.shape))


def _taps_together(plan: LaunchPlan, outputs: int) -> int:
    """The number of taps that one program takes: they share its loads, and have a sum each.

    With a full M and less than a warp group's outputs, ptxas gives three sums only 32 registers and
    spills 15 kB per thread.
    """
    row = plan.frame.kw
    narrow = plan.full and outputs < WARP_GROUP
    return 1 if narrow or row > MOST_TOGETHER else row


def _diagonal_gradients(
    plan: LaunchPlan, given: Operands, gradients: Gradients, needs: Sequence[bool]
) -> None:
    x, (grad_x, _, grad_m), (needs_x, _, needs_m) = given.x, gradients, needs
    constants = plan.group_tiles(64, 64) | {"NEEDS_X": needs_x, "NEEDS_M": needs_m}
    parts = _partial_sums(plan, grad_m, constants) if needs_m else given.m[None]
    if needs_m:
        parts.zero_()  # no pixel computes the taps in the border
    results = kernel_images(grad_x if needs_x else x), _kernel_similarities(parts, plan.full)
    frame, sizes = plan.frame, plan.sizes
    rows, columns = triton.cdiv(sizes.height, frame.sh), triton.cdiv(sizes.width, frame.sw)
    tiles = _row_tiles(sizes.images * rows * columns)
    grid = (tiles, plan.piece_count(x.shape[1], constants), frame.sh * frame.sw)
    operands = plan.y, plan.x, plan.weight, plan.m
    _launch_kernel(kernels.diagonal_gradients, plan, (*operands, *results), constants, grid)
    if needs_m:
        _add_parts(parts, grad_m)


def _full_data_gradient(plan: LaunchPlan, given: Operands, grad_x: Tensor) -> None:
    constants = plan.tile_constants(64, 32)
    tiles = _row_tiles(plan.sizes.images * plan.sizes.height * plan.sizes.width)
    grid = (tiles, plan.piece_count(given.x.shape[1], constants))
    arguments = plan.y, plan.weight, plan.m, kernel_images(grad_x)
    _launch_kernel(kernels.full_data_gradient, plan, arguments, constants, grid)


def _full_similarity_gradient(plan: LaunchPlan, given: Operands, grad_m: Tensor) -> None:
    constants = plan.group_tiles(32, 64)
    parts = _partial_sums(plan, grad_m, constants)
    grid = (_row_tiles(plan.output_positions), plan.piece_count(given.x.shape[1], constants))
    arguments = plan.y, plan.x, plan.weight, _kernel_similarities(parts, plan.full)
    _launch_kernel(kernels.full_similarity_gradient, plan, arguments, constants, grid)
    _add_parts(parts, grad_m)


def _partial_sums(plan: LaunchPlan, gradient: Tensor, constants: Constants) -> Tensor:
    """Memory (parts, *gradient) for the terms that a block's pieces add to its M's gradient."""
    count = plan.piece_count(plan.channels.block, constants)
    if count == 1:
        return gradient[None]
    return gradient.new_empty(count, *gradient.shape, dtype=torch.float32)


def _add_parts(parts: Tensor, gradient: Tensor) -> None:
    if len(parts) > 1:
        gradient.copy_(parts.sum(0))


def _launch_kernel(
    kernel: Any,
    plan: LaunchPlan,
    arguments: Sequence[Any],
    constants: Constants,
    grid: Sequence[Any],
) -> None:
    """Run a kernel on a grid whose first size may depend on the rows of a tile."""
    (size, *rest), first = grid, arguments[0].at
    first_size = size if callable(size) else lambda _: size
    kind = first.element_size(), plan.full
    key = (kernel, kind, tuple(constants), plan.output_positions.bit_length())
    choice = (*key, plan.channels, tuple(constants.values()))
    config = _CHOSEN.get(choice)
    if is_interpreted() or torch.are_deterministic_algorithms_enabled():
        config = CONFIGS[kind][0]
    elif config is None and first.is_cuda and torch.cuda.is_current_stream_capturing():
        config = CONFIGS[kind][0]  # Timing configurations would end the capture.
    run = kernel if config else _tune_kernel(*key)
    place = torch.cuda.device_of(first) if first.is_cuda else nullcontext()
    with place, nullcontext() if config else _TUNING:
        run[lambda chosen: (first_size(chosen), *rest)](
            *arguments, plan.sizes, plan.channels, **constants, **(config or {}),
            enable_fp_fusion=True,  # Triton 3.9 warns unless it is asked for or refused
        )  # fmt: skip
        if not config:
            best = run.best_config
            stages = {"num_warps": best.num_warps, "num_stages": best.num_stages}
            _CHOSEN[choice] = best.kwargs | stages


_CHOSEN: dict[tuple[Any, ...], Constants] = {}
"""The fastest configurations: launching through the tuner would take the host twice as long."""
_TUNING = Lock()
"""Triton's tuner stores the arguments of a call in itself, and threads share the tuner."""


@cache
def _tune_kernel(
    kernel: Any, operand_kind: tuple[int, bool], constants: tuple[str, ...], extent: int
) -> Any:
    """The kernel, which times the configurations for new channels and constants.

    `extent` is the number of bits of the number of positions, by which choices differ as well.
    """
    configs = [
        triton.Config({"ROWS": c["ROWS"]}, num_warps=c["num_warps"], num_stages=c["num_stages"])
        for c in CONFIGS[operand_kind]
    ]
    return triton.autotune(configs, key=["channels", *constants])(kernel)


def _row_tiles(count: int) -> Callable[[Constants], int]:
    """The number of row tiles for `count` positions, as a function of the configuration."""
    return lambda chosen: triton.cdiv(count, chosen["ROWS"])


def _tile_size(size: int, most: int) -> int:
    """Tiles are powers of two, of at least 16 for the matrix units."""
    return min(most, max(16, triton.next_power_of_2(size)))


def pair_sizes(flat: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Sizes in two dimensions; `flat` is the first one of one-dimensional data."""
    height, width = (flat, *sizes)[-2:]
    return height, width


def frame_window(window: Window, *tensors: Tensor) -> places.WindowFrame:
    """The window over these tensors, and whether an offset in one of them, or in a dense one like
    it, may exceed int32.
    """
    pairs = zip((1, 1, 0, 1), window, strict=True)
    sides = (side for flat, sides in pairs for side in pair_sizes(flat, sides))
    steps = [[(n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)] for t in tensors]
    far = max(max(sum(s), t.numel()) for s, t in zip(steps, tensors, strict=True)) >= FAR
    return places.WindowFrame(*sides, far=far)


def kernel_images(maps: Tensor) -> places.ImageLayout:
    """Maps (n, c, h, w) or (n, c, w) as kernels take them."""
    maps = maps.unsqueeze(2) if maps.dim() == 3 else maps
    return places.ImageLayout(maps, *maps.stride())


def _kernel_similarities(m: Tensor, full: bool) -> places.Similarities:
    """`m` is (part, n, b, *taps, *out)."""
    part, n, b, *rest = m.stride()
    s = rest.pop(0) if full else 0
    return places.Similarities(m, part, n, b, s, rest[0], *pair_sizes(0, rest[1:]))

"""The pointwise operations of a predictor, each in one pass over a map.

With torch's operations they would be five to ten passes over copies in float32, and take more time
than the layer's convolutions.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from neural_similarity.ops.operands import channels_last
from neural_similarity.ops.triton import pointwise_kernels as kernels
from neural_similarity.ops.triton.launch import frame_window, kernel_images, pair_sizes
from neural_similarity.ops.triton.places import LaunchSizes
from neural_similarity.ops.window import Window

ROWS, WIDEST = 32, 128
"""Places of a program, and the most channels that it takes at a time."""
JOINED = 16
"""Places that are taken as one, so that its channels are a multiple of 16 bytes."""


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), float32."""
    n, _, *size = x.shape
    x = channels_last(x)
    energies = x.new_empty(n, 1, *size, dtype=torch.float32)
    factors = x.new_empty(n, 1, *window.output_size(size), dtype=torch.float32)
    frame, sizes = frame_window(window, x, factors), _map_sizes(x, factors)
    maps, inner, outer = kernel_images(x), kernel_images(energies), kernel_images(factors)
    _run_kernel(kernels.energy, x, maps, inner, sizes, x.shape[1], frame, **_tile_width(x))
    _run_kernel(kernels.reciprocal, factors, inner, outer, sizes, eps, factor, frame)
    return factors


def patch_factors_gradient(
    grad: Tensor, x: Tensor, factors: Tensor, window: Window, factor: float
) -> Tensor:
    """The gradient of `patch_factors` by x."""
    x, grad = channels_last(x), grad.contiguous()
    result = torch.empty_like(x)
    sizes, frame = _map_sizes(x, factors), frame_window(window, x, factors, grad)
    maps = kernel_images(x), kernel_images(factors), kernel_images(grad), kernel_images(result)
    _run_kernel(
        kernels.reciprocal_gradient, x, *maps, sizes, x.shape[1], factor, frame, **_tile_width(x)
    )
    return result


def scale_maps(y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
    """y (n, c, *size) times factors (n, 1, *size) in y's type, or the ReLU of that."""
    y = channels_last(y)
    z = torch.empty_like(y)
    _run_over(kernels.scale, y, factors, z, RECTIFIED=rectified)
    return z


def scaled_gradient(
    grad: Tensor, z: Tensor, factors: Tensor, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the factors, from y itself or, rectified, from the result."""
    grad, z = channels_last(grad), channels_last(z)
    results = torch.empty_like(z), torch.empty_like(factors)
    _run_over(kernels.scale_gradient, grad, z, factors, *results, RECTIFIED=rectified)
    return results


def apply_gain(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), float32, plus 1 in every `every`-th channel unless 0."""
    raw = channels_last(raw)
    m = torch.empty_like(raw, dtype=torch.float32)
    rows = _join_places(raw, m)
    _run_over(
        kernels.affine, rows[0], gain.contiguous(), rows[1], EVERY=every, PERIOD=len(gain),
        columns=True,
    )  # fmt: skip
    return m


def gained_gradient(grad: Tensor, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of raw and gain."""
    grad, raw = channels_last(grad), channels_last(raw)
    result = torch.empty_like(raw)
    rows = _join_places(grad, raw, result)
    # A row of partial sums for every program, whose channels repeat with period len(gain).
    parts = gain.new_empty(_program_count(rows[0]), rows[0].shape[1], dtype=torch.float32)
    _run_over(
        kernels.affine_gradient, *rows[:2], gain.contiguous(), rows[2], parts, PERIOD=len(gain),
        columns=True,
    )  # fmt: skip
    return result, parts.view(-1, len(gain)).sum(0).to(gain.dtype)


def _join_places(*maps: Tensor) -> Sequence[Tensor]:
    """Maps (n, c, *size) as (n·places/16, 16·c, 1, 1) where that is a view, else as they are.

    A row of 81 channels does not begin at a multiple of 16 bytes, so that it is loaded number by
    number; one of 16·81 does.
    """
    # Channel c of place p lies at 81·p + c: 16 places in a row are one of 16·81 channels, of which
    # number k belongs to channel k mod 81 (the kernels' PERIOD).
    rows = [each.movedim(1, -1) for each in maps]
    if rows[0].shape[:-1].numel() % JOINED or not all(each.is_contiguous() for each in rows):
        return maps
    return [each.reshape(-1, JOINED * each.shape[-1], 1, 1) for each in rows]


def _run_over(kernel: Any, *tensors: Tensor, columns: bool = False, **constants: Any) -> None:
    """Run a kernel over the places of its first map; vectors and matrices are passed unchanged.

    With `columns`, programs of a second axis take `WIDTH` channels each.
    """
    first = tensors[0]
    given = [kernel_images(t) if t.dim() > 2 else t for t in tensors]
    # A window of one tap: every program's places are read and written at the same index.
    frame = frame_window(Window((1, 1), (1, 1), (0, 0), (1, 1)), *tensors)
    width = _tile_width(first)
    across = triton.cdiv(first.shape[1], width["WIDTH"]) if columns else 1
    _run_kernel(
        kernel, first, *given, _map_sizes(first, first), first.shape[1], frame, across=across,
        **width, **constants,
    )  # fmt: skip


def _run_kernel(
    kernel: Any, over: Tensor, *arguments: Any, across: int = 1, **constants: Any
) -> None:
    """Run `across` programs for every `ROWS` places of the map `over`."""
    *arguments, frame = arguments  # pyright: ignore[reportAssignmentType]
    if over.numel():
        with torch.cuda.device_of(over):
            kernel[_program_count(over), across](*arguments, FRAME=frame, ROWS=ROWS, **constants)


def _program_count(maps: Tensor) -> int:
    return triton.cdiv(maps.shape[0] * prod(maps.shape[2:]), ROWS)


def _tile_width(maps: Tensor) -> dict[str, int]:
    return {"WIDTH": min(WIDEST, triton.next_power_of_2(maps.shape[1]))}


def _map_sizes(maps: Tensor, out: Tensor) -> LaunchSizes:
    return LaunchSizes(maps.shape[0], *pair_sizes(1, maps.shape[2:]), *pair_sizes(1, out.shape[2:]))

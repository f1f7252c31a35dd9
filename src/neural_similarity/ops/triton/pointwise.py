"""What a predictor does between its convolutions, in one pass over a map each.

As torch's operations these are five to ten passes over copies in float32, and cost a layer more
time than its convolutions.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from neural_similarity.ops.operands import channels_last
from neural_similarity.ops.triton import pointwise_kernels as kernels
from neural_similarity.ops.triton.kernels import Frame, Sizes
from neural_similarity.ops.triton.launch import far, images
from neural_similarity.ops.window import Window

ROWS, WIDEST = 32, 128
"""Places of a program; channels that it takes at a time at most."""


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), float32."""
    n, _, *size = x.shape
    x = channels_last(x)
    energies = x.new_empty(n, 1, *size, dtype=torch.float32)
    factors = x.new_empty(n, 1, *window.output_size(size), dtype=torch.float32)
    frame, sizes = _frame(window, x, factors), _sizes(x, factors)
    _run(kernels.energy, x, images(x), images(energies), sizes, x.shape[1], frame, **_width(x))
    _run(kernels.reciprocal, factors, images(energies), images(factors), sizes, eps, factor, frame)
    return factors


def patch_factors_gradient(
    grad: Tensor, x: Tensor, factors: Tensor, window: Window, factor: float
) -> Tensor:
    """The gradient of x."""
    x, grad = channels_last(x), grad.contiguous()
    result = torch.empty_like(x)
    sizes, frame = _sizes(x, factors), _frame(window, x, factors, grad)
    maps = images(x), images(factors), images(grad), images(result)
    _run(kernels.reciprocal_gradient, x, *maps, sizes, x.shape[1], factor, frame, **_width(x))
    return result


def scaled(y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
    """y (n, c, *size) times factors (n, 1, *size) in y's type; negative numbers are 0 if asked."""
    y = channels_last(y)
    z = torch.empty_like(y)
    maps, options = (images(y), images(factors), images(z)), {"RECTIFIED": rectified, **_width(y)}
    _run(kernels.scale, y, *maps, _sizes(y, y), y.shape[1], _plain(y, factors), **options)
    return z


def scaled_gradient(
    grad: Tensor, z: Tensor, factors: Tensor, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the factors, from y itself or, rectified, from the result."""
    grad, z = channels_last(grad), channels_last(z)
    grad_y, grad_factors = torch.empty_like(z), torch.empty_like(factors)
    maps = [images(t) for t in (grad, z, factors, grad_y, grad_factors)]
    options = {"RECTIFIED": rectified, **_width(z)}
    _run(
        kernels.scale_gradient,
        z,
        *maps,
        _sizes(z, z),
        z.shape[1],
        _plain(grad, z, factors),
        **options,
    )
    return grad_y, grad_factors


def gained(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), float32, plus 1 in every `every`-th channel unless 0."""
    raw = channels_last(raw)
    m = torch.empty_like(raw, dtype=torch.float32)
    maps, options = (images(raw), gain.contiguous(), images(m)), {"EVERY": every, **_width(raw)}
    _run(kernels.affine, raw, *maps, _sizes(raw, raw), raw.shape[1], _plain(raw), **options)
    return m


def gained_gradient(grad: Tensor, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of raw and gain."""
    grad, raw = channels_last(grad), channels_last(raw)
    result, count = torch.empty_like(raw), raw.shape[1]
    parts = gain.new_empty(_programs(raw), count, dtype=torch.float32)
    maps = images(grad), images(raw), gain.contiguous(), images(result), parts
    _run(
        kernels.affine_gradient,
        raw,
        *maps,
        _sizes(raw, raw),
        count,
        _plain(grad, raw),
        **_width(raw),
    )
    return result, parts.sum(0).to(gain.dtype)


def _run(kernel: Any, over: Tensor, *arguments: Any, **constants: Any) -> None:
    """A program for every `ROWS` places of the map `over`."""
    *arguments, frame = arguments  # pyright: ignore[reportAssignmentType]
    if over.numel():
        with torch.cuda.device_of(over):
            kernel[(_programs(over),)](*arguments, FRAME=frame, ROWS=ROWS, **constants)


def _programs(maps: Tensor) -> int:
    return triton.cdiv(maps.shape[0] * prod(maps.shape[2:]), ROWS)


def _width(maps: Tensor) -> dict[str, int]:
    return {"WIDTH": min(WIDEST, triton.next_power_of_2(maps.shape[1]))}


def _sizes(maps: Tensor, out: Tensor) -> Sizes:
    return Sizes(maps.shape[0], *_pair(maps), *_pair(out))


def _pair(maps: Tensor) -> tuple[int, int]:
    height, width = (1, *maps.shape[2:])[-2:]
    return height, width


def _frame(window: Window, *maps: Tensor) -> Frame:
    flat: Sequence[int] = (1, 1, 0, 1)
    sides = (side for one, own in zip(flat, window, strict=True) for side in (one, *own)[-2:])
    return Frame(*sides, far=far(*maps))


def _plain(*maps: Tensor) -> Frame:
    """The frame of what has no window."""
    return _frame(Window((1, 1), (1, 1), (0, 0), (1, 1)), *maps)

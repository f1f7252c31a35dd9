"""The pointwise operations of a predictor in C: one pass over a map, in either layout."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from neural_similarity.ops.native import find_function, frame_of
from neural_similarity.ops.window import Window

_AT, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_MAP = (_COUNT,) * 5
"""Images, positions, channels, whether channels are adjacent, threads."""
_ARGUMENTS = {
    "gained": (*_MAP, _AT, _AT, _COUNT, _AT),
    "gained_gradient": (*_MAP, _AT, _AT, _AT, _AT, _AT),
    "patch_factors": (_AT, _COUNT, _AT, _NUMBER, _NUMBER, _AT),
    "patch_factors_gradient": (_AT, _COUNT, _AT, _AT, _AT, _NUMBER, _AT),
    "scaled": (*_MAP, _AT, _AT, _COUNT, _AT),
    "scaled_gradient": (*_MAP, _AT, _AT, _AT, _COUNT, _AT, _AT),
}


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), float32."""
    x, last, sizes = _dense(x)
    frame, output = _frame_of(window, x.shape, sizes[-1])
    factors = x.new_empty(len(x), 1, *output, dtype=torch.float32)
    where, at, to = ctypes.byref(frame), x.data_ptr(), factors.data_ptr()
    if _function("patch_factors", x.dtype)(where, last, at, eps, factor, to):
        raise MemoryError("the compiled operators ran out of memory in patch_factors")
    return factors


def patch_factors_gradient(
    grad: Tensor, x: Tensor, factors: Tensor, window: Window, factor: float
) -> Tensor:
    """The gradient of `patch_factors` by x."""
    (x, last, sizes), grad = _dense(x), grad.contiguous()
    result, frame = torch.empty_like(x), _frame_of(window, x.shape, sizes[-1])[0]
    maps = grad.data_ptr(), x.data_ptr(), factors.data_ptr()
    run = _function("patch_factors_gradient", x.dtype)
    if run(ctypes.byref(frame), last, *maps, factor, result.data_ptr()):
        raise MemoryError("the compiled operators ran out of memory in patch_factors_gradient")
    return result


def scale_maps(y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
    """y (n, c, *size) times factors (n, 1, *size) in y's type, or the ReLU of that."""
    (y, _, sizes), factors = _dense(y), factors.contiguous()
    if factors.shape != (y.shape[0], 1, *y.shape[2:]):
        raise _misfit("factors", (y.shape[0], 1, *y.shape[2:]), factors)
    z = torch.empty_like(y)
    maps = y.data_ptr(), factors.data_ptr()
    _function("scaled", y.dtype)(*sizes, *maps, rectified, z.data_ptr())
    return z


def scaled_gradient(
    grad: Tensor, z: Tensor, factors: Tensor, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the factors, from y itself or, rectified, from the result."""
    (z, _, sizes), factors = _dense(z), factors.contiguous()
    if factors.shape != (z.shape[0], 1, *z.shape[2:]):
        raise _misfit("factors", (z.shape[0], 1, *z.shape[2:]), factors)
    if grad.stride() != z.stride():
        grad = torch.empty_like(z).copy_(grad)
    of_y, of_factors = torch.empty_like(z), torch.empty_like(factors)
    maps = grad.data_ptr(), z.data_ptr(), factors.data_ptr()
    results = of_y.data_ptr(), of_factors.data_ptr()
    _function("scaled_gradient", z.dtype)(*sizes, *maps, rectified, *results)
    return of_y, of_factors


def apply_gain(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), float32, plus 1 in every `every`-th channel unless 0."""
    (raw, _, sizes), gain = _dense(raw), gain.float().contiguous()
    if gain.shape != raw.shape[1:2]:
        raise _misfit("gain", raw.shape[1:2], gain)
    m = torch.empty_like(raw, dtype=torch.float32)
    maps, run = (raw.data_ptr(), gain.data_ptr()), _function("gained", raw.dtype)
    if run(*sizes, *maps, every, m.data_ptr()):
        raise MemoryError("the compiled operators ran out of memory in gained")
    return m


def gained_gradient(grad: Tensor, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of raw and gain."""
    (raw, _, sizes), wide = _dense(raw), gain.float().contiguous()
    if gain.shape != raw.shape[1:2]:
        raise _misfit("gain", raw.shape[1:2], gain)
    if grad.stride() != raw.stride():
        grad = torch.empty_like(raw, dtype=grad.dtype).copy_(grad)
    of_raw = torch.empty_like(raw)
    of_gain = wide.new_zeros(sizes[-1], len(gain), dtype=torch.float64)
    maps = grad.data_ptr(), raw.data_ptr(), wide.data_ptr(), of_raw.data_ptr()
    if _function("gained_gradient", raw.dtype)(*sizes, *maps, of_gain.data_ptr()):
        raise MemoryError("the compiled operators ran out of memory in gained_gradient")
    return of_raw, of_gain.sum(0).to(gain.dtype)


def _dense(maps: Tensor) -> tuple[Tensor, bool, tuple[int, ...]]:
    """Maps without gaps, whether their channels are adjacent, and `_MAP`."""
    last = not maps.is_contiguous()
    if last:
        maps = maps.movedim(1, -1).contiguous().movedim(-1, 1)
    images, channels = maps.shape[:2]
    positions = maps.numel() // max(1, images * channels)
    return maps, last, (images, positions, channels, last, torch.get_num_threads())


def _misfit(name: str, wanted: Sequence[int], given: Tensor) -> ValueError:
    """An error of a tensor beyond which C would read or write."""
    return ValueError(f"`{name}` must be {tuple(wanted)}, got {tuple(given.shape)}")


@lru_cache(maxsize=512)
def _frame_of(
    window: Window, shape: torch.Size, threads: int
) -> tuple[ctypes.Structure, tuple[int, ...]]:
    """The frame of a window over maps (n, c, *size), and its number of positions."""
    images, channels, *size = shape
    output = window.output_size(size)
    if min(output) < 1:
        raise ValueError(
            f"the input must be at least as large as the window, got {tuple(size)} with padding "
            f"{window.padding} for a kernel of {window.kernel_size}, dilation {window.dilation}"
        )
    return frame_of(window, (images, *size, channels), output, threads), output


@cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., int]:
    function = find_function(name, dtype)
    function.argtypes = _ARGUMENTS[name]
    return function

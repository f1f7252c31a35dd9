"""A layer of the default or the light predictor in one C call each way: `layer.h`."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from neural_similarity.ops.native import Frame, Group, find_function, takes_together
from neural_similarity.ops.operands import LayerFrame, LayerTensors
from neural_similarity.ops.window import Window

Kept = Sequence[Tensor]
"""What forward writes for backward: h, r and f, with adjacent channels."""


def forward(given: LayerTensors, frame: LayerFrame, y: Tensor, kept: Kept) -> None:
    """Write y and what backward needs into uninitialised tensors."""
    (x, _, *kernels), last = _dense(given.x, y, given.weight, given.first, given.last)
    weight, *predictor = kernels
    biases = given.bias, given.last_bias
    operands = x, weight, biases[0], *predictor, biases[1], given.gain.float(), y, *kept
    _call("layer_forward", given, frame, last, operands)


def backward(
    grad: Tensor, given: LayerTensors, kept: Kept, frame: LayerFrame, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the layer's tensors that `needs` asks for."""
    (x, grad, *kernels), last = _dense(given.x, grad, given.weight, given.first, given.last)
    gain = given.gain.float()
    like = x, kernels[0], given.bias, *kernels[1:], given.last_bias, gain
    results = [
        torch.empty_like(t) if need and t is not None else None
        for t, need in zip(like, needs, strict=True)
    ]
    _call("layer_backward", given, frame, last, (grad, x, *kernels, gain, *kept, *results))
    if (of_gain := results[-1]) is not None:
        results[-1] = of_gain.to(given.gain.dtype)
    return results


def _dense(*tensors: Tensor) -> tuple[list[Tensor], int]:
    """Tensors (n, c, *size) without gaps, and a bit for each whose channels are adjacent."""
    dense, bits = [], 0
    for bit, tensor in enumerate(tensors):
        whole = tensor
        if not tensor.is_contiguous():
            last = tensor.movedim(1, -1).is_contiguous()
            bits |= last << bit
            whole = tensor if last else tensor.contiguous()
        dense.append(whole)
    return dense, bits


def _call(
    name: str, given: LayerTensors, frame: LayerFrame, last: int, operands: Sequence[Tensor | None]
) -> None:
    x, weight, threads = given.x, given.weight, torch.get_num_threads()
    layer = _layer_of(frame, x.shape, weight.shape, given.first.shape[0], x.dtype, threads)
    addresses = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in operands]
    if find_function(name, x.dtype)(ctypes.byref(layer), ctypes.c_int64(last), *addresses):
        raise MemoryError(f"the compiled operators ran out of memory in {name}")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, Frame) for name in ("conv", "first", "last")),
        *((name, ctypes.c_int64) for name in ("groups", "light")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


@lru_cache(maxsize=512)
def _layer_of(
    frame: LayerFrame,
    maps: Sequence[int],
    kernel: Sequence[int],
    hidden: int,
    dtype: torch.dtype,
    threads: int,
) -> _Layer:
    """C's structure of a layer for maps (n, c, *size) and a kernel (o, c/groups, *window)."""
    images, channels, *size = maps
    window, out = frame.window, frame.window.output_size(size)
    entries = (window.taps,) * (1 + frame.full)
    together = takes_together(kernel, frame.groups, dtype)
    groups = 1 if together else frame.groups

    pixels, ones = (images, *size, channels), (1,) * len(size)
    hidden_size, first, last = out, window, frame.last
    if frame.light:
        hidden_size, first, last = size, Window(ones, ones, (0,) * len(size), ones), window

    def frame_of(
        window: Window, x: Sequence[int], y: Sequence[int], w: Sequence[int], m: Sequence[int] = ()
    ) -> Frame:
        shapes = x, (*y, 1, *(m or (window.taps,))), w, (*y, w[0])
        place, joined = ((0, groups), together) if m else ((0, 1), False)
        return Group(len(m) > 1, window, place, shapes, dtype, threads, joined).frame

    out, between = (images, *out), (images, *hidden_size)
    return _Layer(
        frame_of(window, pixels, out, (kernel[0], window.taps, kernel[1]), entries),
        frame_of(first, pixels, between, (hidden, first.taps, channels)),
        frame_of(last, (*between, hidden), out, (prod(entries), last.taps, hidden)),
        groups,
        frame.light,
        frame.eps,
        frame.factor,
    )

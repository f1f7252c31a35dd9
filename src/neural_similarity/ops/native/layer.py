"""A layer of a standard predictor in one C call each way: `layer.h`."""

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
PREDICTOR_NAMES = "sphere", "light", "pooled"
"""As C numbers them."""


def forward(given: LayerTensors, frame: LayerFrame, y: Tensor, kept: Kept) -> None:
    """Write y and what backward needs into uninitialised tensors."""
    (x, _, weight, *kernels), bits = _dense(given.x, y, given.weight, given.first, given.last)
    operands = x, weight, given.bias, *_predictor(given, frame, *kernels), y, *kept
    _call("layer_forward", given, frame, bits, operands)


def backward(
    grad: Tensor, given: LayerTensors, kept: Kept, frame: LayerFrame, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the layer's tensors that `needs` asks for."""
    (x, grad, weight, *kernels), bits = _dense(given.x, grad, given.weight, given.first, given.last)
    predictor = first, _, second, _, gain = _predictor(given, frame, *kernels)
    like = x, weight, given.bias, *predictor
    results = [
        torch.empty_like(t) if need and t is not None else None
        for t, need in zip(like, needs, strict=True)
    ]
    operands = grad, x, weight, first, second, gain, *kept, *results
    _call("layer_backward", given, frame, bits, operands)
    return [
        g if g is None or t is None else g.to(t.dtype) for g, t in zip(results, given, strict=True)
    ]


def _predictor(
    given: LayerTensors, frame: LayerFrame, first: Tensor, second: Tensor
) -> tuple[Tensor | None, ...]:
    """W₁, b₁, W₂, b₂ and g in C's types: the gains and the pooled predictor are in float32."""
    parts, gain = (first, given.first_bias, second, given.last_bias), given.gain.float()
    if frame.predictor == "pooled" and first.dtype != torch.float32:
        return *[t if t is None else t.float() for t in parts], gain
    return *parts, gain


def _dense(*tensors: Tensor) -> tuple[list[Tensor], int]:
    """Tensors (n, c, *size) without gaps, and a bit for each whose channels are adjacent."""
    dense, bits = [], 0
    for bit, tensor in enumerate(tensors):
        whole, adjacent = tensor, tensor.shape[2:].numel() == 1
        if not tensor.is_contiguous():
            moved = tensor.movedim(1, -1).is_contiguous()
            adjacent |= moved
            whole = tensor if moved else tensor.contiguous()
        bits |= adjacent << bit
        dense.append(whole)
    return dense, bits


def _call(
    name: str, given: LayerTensors, frame: LayerFrame, bits: int, operands: Sequence[Tensor | None]
) -> None:
    x, weight, threads = given.x, given.weight, torch.get_num_threads()
    layer = _layer_of(frame, x.shape, weight.shape, given.first.shape[0], x.dtype, threads)
    addresses = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in operands]
    if find_function(name, x.dtype)(ctypes.byref(layer), ctypes.c_int64(bits), *addresses):
        raise MemoryError(f"the compiled operators ran out of memory in {name}")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, Frame) for name in ("conv", "first", "last")),
        *((name, ctypes.c_int64) for name in ("groups", "predictor", "folds")),
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
    seen, hidden_size, raw_size, first, second = size, out, out, window, frame.last
    if frame.predictor != "sphere":
        hidden_size, first, second = size, Window(ones, ones, (0,) * len(size), ones), window
    if frame.predictor == "pooled":
        seen = hidden_size = raw_size = ones
        second = first

    def frame_of(
        window: Window, x: Sequence[int], y: Sequence[int], w: Sequence[int], m: Sequence[int] = ()
    ) -> Frame:
        shapes = x, (*y, 1, *(m or (window.taps,))), w, (*y, w[0])
        place, joined = ((0, groups), together) if m else ((0, 1), False)
        return Group(len(m) > 1, window, place, shapes, dtype, threads, joined).frame

    between = (images, *hidden_size)
    return _Layer(
        frame_of(window, pixels, (images, *out), (kernel[0], window.taps, kernel[1]), entries),
        frame_of(first, (images, *seen, channels), between, (hidden, first.taps, channels)),
        frame_of(
            second, (*between, hidden), (images, *raw_size), (prod(entries), second.taps, hidden)
        ),
        groups,
        PREDICTOR_NAMES.index(frame.predictor),
        # A full M of many positions costs less in the kernel, where a diagonal one never does.
        frame.predictor == "pooled" and frame.full and prod(out) * frame.groups > kernel[0],
        frame.eps,
        frame.factor,
    )

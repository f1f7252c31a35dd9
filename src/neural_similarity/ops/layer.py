r"""The whole layer of a standard predictor as one operator, with one backward pass.

$$f = s\,(\|X\|^2 + \varepsilon)^{-1/2}, \quad h = \max(0,\ f\, W_1 * x), \quad
r = W_2 * h + b_2, \quad M = I + g\, r, \quad y = W^\top M X + b$$

It keeps x, h, r and f for backward, which computes M again. Forward and backward call the same
functions as the parts, in the same order, so that results are the same bit for bit. Programs of
`torch.compile` see two registered operators; without them the same functions run without torch's
dispatcher, which would cost more than the small operations themselves.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops.backend import choose_implementation
from neural_similarity.ops.operands import Gradients, Implementation, LayerTensors, Operands
from neural_similarity.ops.pointwise import apply_gain, implementation
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.similarity import dynamic_conv
from neural_similarity.ops.sphere import sphere_conv
from neural_similarity.ops.tracing import runs_eagerly
from neural_similarity.ops.window import (
    Window,
    autocast_dtype,
    autocast_enabled,
    without_autocast,
)

_TYPES = (torch.float32, torch.bfloat16, torch.float64)
Way = Callable[[Operands], Implementation]
"""Chooses an implementation of the operator with a given M."""
Apply = Callable[[Tensor, Tensor, int], Tensor]
"""`pointwise.apply_gain`, or one that is not differentiable."""


class LayerFrame(NamedTuple):
    """What a layer's operator depends on beside its tensors."""

    window: Window
    last: Window
    """That of the second convolution."""
    groups: int
    eps: float
    factor: float
    """s: 1, or √N for patches over their root mean square."""
    full: bool


class Kept(NamedTuple):
    """What forward keeps for backward beside the parts: h, r and f."""

    hidden: Tensor
    raw: Tensor
    factors: Tensor


def takes_layer(x: Tensor) -> bool:
    """Whether `predicted_conv` takes x: on a CPU, outside tracers, modes and `torch.func`."""
    if not x.is_cpu or autocast_dtype(x) not in _TYPES:
        return False
    if runs_eagerly(x):  # A dispatch mode, such as a counter of FLOPs, is to see the parts.
        return torch._C._len_torch_dispatch_stack() == 0
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def predicted_conv(given: LayerTensors, frame: LayerFrame) -> Tensor:
    """y (n, o, *out) of checked parts; `takes_layer(given.x)` must be True."""
    x = given.x
    if autocast_enabled(x):
        dtype = autocast_dtype(x)
        narrow = [t if t is None else t.to(dtype) for t in given[:6]]
        with without_autocast(x):
            return predicted_conv(LayerTensors._make((*narrow, given.gain)), frame)
    if torch.is_grad_enabled():
        return _Layer.apply(*given, frame)
    return _run_forward(given, frame)[0]


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.frame = arguments
        y, *kept = _run_forward(LayerTensors(*tensors), ctx.frame)
        ctx.save_for_backward(*tensors, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        needs, frame = ctx.needs_input_grad[:7], ctx.frame
        (grad,), saved = grad_outputs, ctx.saved_tensors
        given, kept = LayerTensors(*saved[:7]), Kept(*saved[7:])
        if torch.compiler.is_compiling():
            found = _backward_op(grad, *given, *kept, *_plain_values(frame), needs)
        elif not torch.is_grad_enabled() and runs_eagerly(grad):
            found = _gradients(grad, given, kept, frame, needs, _WAYS[frame.full])
        else:
            found = _composed_gradients(grad, given, frame, needs)
        return *[g if need else None for g, need in zip(found, needs, strict=True)], None


def _run_forward(given: LayerTensors, frame: LayerFrame) -> Sequence[Tensor]:
    """y and what backward keeps."""
    if torch.compiler.is_compiling():
        return _forward_op(*given, *_plain_values(frame))
    return _output(given, frame, _WAYS[frame.full])


def _output(
    given: LayerTensors, frame: LayerFrame, way: Way
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y and what backward keeps."""
    x, weight, bias, first, last, last_bias, gain = given
    pointwise = implementation(x, frame.window.taps)
    factors = pointwise.patch_factors(x, frame.window, frame.eps, frame.factor)
    inner = _convolution(x, first, None, frame.window)
    hidden = pointwise.scale_maps(inner, factors, True)
    raw = _convolution(hidden, last, last_bias, frame.last)
    m = _matrix(raw, gain, frame, pointwise.apply_gain)
    operands = Operands(x, weight, m, frame.window, frame.groups)
    y = way(operands).forward(operands)
    if bias is not None:
        y += bias.to(y.dtype).view(-1, *[1] * (y.dim() - 2))
    return y, hidden, raw, factors


def _gradients(
    grad: Tensor,
    given: LayerTensors,
    kept: Kept,
    frame: LayerFrame,
    needs: Sequence[bool],
    way: Way,
) -> list[Tensor | None]:
    """The gradients of the parts, those that `needs` asks for."""
    x, weight, *_, gain = given
    of_bias = grad.sum((0, *range(2, grad.dim()))) if needs[2] else None
    predicts = needs[0] or any(needs[3:])
    pointwise = implementation(x, frame.window.taps)
    m = _matrix(kept.raw, gain, frame, pointwise.apply_gain)
    operands = Operands(x, weight, m, frame.window, frame.groups)
    wanted = needs[0], needs[1], predicts
    of_x, of_weight, of_m = way(operands).backward(grad, operands, wanted)
    if not predicts:
        return [None, of_weight, of_bias, None, None, None, None]
    of_raw, of_gain = pointwise.gained_gradient(of_m.reshape(kept.raw.shape), kept.raw, gain)
    found = _predictor_gradients(of_raw, given, kept, frame, needs, pointwise)
    for term in found[0]:
        of_x += term
    return [of_x, of_weight, of_bias, *found[1:], of_gain]


def _predictor_gradients(
    of_raw: Tensor,
    given: LayerTensors,
    kept: Kept,
    frame: LayerFrame,
    needs: Sequence[bool],
    pointwise: Any,
) -> tuple[list[Tensor], Tensor | None, Tensor | None, Tensor | None]:
    """Two terms of the gradient of x, if it needs one, and the gradients of W₁, W₂ and b₂."""
    x, _, _, first, last, _, _ = given
    inside = needs[0] or needs[3]
    of_hidden, of_last, of_bias = _convolution_gradients(
        of_raw, kept.hidden, last, frame.last, (inside, needs[4], needs[5])
    )
    if not inside:
        return [], None, of_last, of_bias
    of_inner, of_factors = pointwise.scaled_gradient(of_hidden, kept.hidden, kept.factors, True)
    of_x, of_first, _ = _convolution_gradients(
        of_inner, x, first, frame.window, (needs[0], needs[3], False)
    )
    if not needs[0]:
        return [], of_first, of_last, of_bias
    through_factors = pointwise.patch_factors_gradient(
        of_factors, x, kept.factors, frame.window, frame.factor
    )
    return [of_x, through_factors], of_first, of_last, of_bias


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    zeros = (0,) * len(window.stride)
    return torch.convolution(x, weight, bias, *window[1:], False, zeros, 1)


def _convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, window: Window, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias of a convolution, those that `needs` asks for."""
    zeros = (0,) * len(window.stride)
    return torch.ops.aten.convolution_backward.default(
        grad, x, weight, [len(weight)], *window[1:], False, zeros, 1, needs
    )


def _matrix(raw: Tensor, gain: Tensor, frame: LayerFrame, apply: Apply) -> Tensor:
    """M (n, 1, K, *out) or (n, 1, K, K, *out) of r."""
    if not frame.full:
        return apply(raw, gain, 1).unsqueeze(1)
    taps = frame.window.taps
    return apply(raw, gain, taps + 1).unflatten(1, (1, taps, taps))


def _composed_gradients(
    grad: Tensor, given: LayerTensors, frame: LayerFrame, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by the parts of the layer, which can be differentiated again and vmapped."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(given.x):
        # Aliases, because one part may depend on another: layers may share a kernel.
        aliases = LayerTensors._make(t if t is None else t.unsqueeze(0).squeeze(0) for t in given)
        y = _composed_output(aliases, frame)
    wanted = [t for t, need in zip(aliases, needs, strict=True) if need and t is not None]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=again))
    return [next(found) if need else None for need in needs]


def _composed_output(given: LayerTensors, frame: LayerFrame) -> Tensor:
    """y of the parts that the operator stands for."""
    x, weight, bias, first, last, last_bias, gain = given
    hidden = sphere_conv(
        x, first, *frame.window[1:],
        normalize="input", eps=frame.eps, factor=frame.factor, rectified=True,
    )  # fmt: skip
    raw = _convolution(hidden, last, last_bias, frame.last)
    m = _matrix(raw, gain, frame, apply_gain).squeeze(1)
    operands = Operands(x, weight, m, frame.window, frame.groups)
    return dynamic_conv(operands, operands.output_size, bias, None)


class _Shapes:
    """`operands.Implementation` for tensors without data."""

    def forward(self, given: Operands) -> Tensor:
        return given.empty_output()

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        return given.empty_gradients(needs)


def _shapes(given: Operands) -> Implementation:
    return _Shapes()


_PARTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor first, Tensor last, Tensor? last_bias, "
    "Tensor gain"
)
_KEPT = "Tensor hidden, Tensor raw, Tensor factors"
_FRAME = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, float eps, "
    "float factor, bool full"
)


def _plain_values(frame: LayerFrame) -> tuple[Any, ...]:
    """The arguments that describe a frame; `_frame_of` is the inverse."""
    return *frame.window[1:], *frame[2:]


def _frame_of(first: Tensor, last: Tensor, *values: Any) -> LayerFrame:
    window = Window(tuple(first.shape[2:]), *map(tuple, values[:3]))
    return LayerFrame(window, same_window(tuple(last.shape[2:])), *values[3:])


def same_window(kernel_size: tuple[int, ...]) -> Window:
    """The window, of odd size, that keeps the number of positions."""
    ones = (1,) * len(kernel_size)
    return Window(kernel_size, ones, tuple([size // 2 for size in kernel_size]), ones)


def _forward_body(*arguments: Any, way: Way | None = None) -> tuple[Tensor, ...]:
    given = LayerTensors(*arguments[:7])
    frame = _frame_of(given.first, given.last, *arguments[7:])
    return _output(given, frame, way or _WAYS[frame.full])


def _backward_body(grad: Tensor, *arguments: Any, way: Way | None = None) -> tuple[Tensor, ...]:
    given, kept, needs = LayerTensors(*arguments[:7]), Kept(*arguments[7:10]), arguments[-1]
    frame = _frame_of(given.first, given.last, *arguments[10:-1])
    found = _gradients(grad, given, kept, frame, needs, way or _WAYS[frame.full])
    return tuple(
        [
            g if need and g is not None else grad.new_empty(0)
            for g, need in zip(found, needs, strict=True)
        ]
    )


_WAYS: dict[bool, Way] = {
    full: partial(choose_implementation, "auto", full=full) for full in (False, True)
}
_forward_op = register_operator(
    "predicted_conv",
    f"({_PARTS}, {_FRAME}) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward_body,
    partial(_forward_body, way=_shapes),
)
_backward_op = register_operator(
    "predicted_conv_backward",
    f"(Tensor grad, {_PARTS}, {_KEPT}, {_FRAME}, bool[] needs) -> ({', '.join(['Tensor'] * 7)})",
    _backward_body,
    partial(_backward_body, way=_shapes),
)

r"""The whole layer of a standard predictor as one operator, with one backward pass.

$$f = s\,(\|X\|^2 + \varepsilon)^{-1/2}, \quad h = \max(0,\ f\, W_1 * x), \quad
r = W_2 * h + b_2, \quad M = I + g\, r, \quad y = W^\top M X + b$$

or with the light predictor $h = \max(0,\ W_1 * x)$, $f = s\,(\|H\|^2 + \varepsilon)^{-1/2}$ and
$r = \tanh(f\, W_2 * h + b_2)$, or with the pooled one, of the averages a of each image's channels,
$h = \max(0,\ s\, W_1 a / \|a\| + b_1)$ and $r = \tanh(W_2 h + b_2)$.

It is one C call each way (`native/layer.py`), keeps x, h, r and f for backward, and computes M
again. Derivatives of derivatives are those of the parts that the operator stands for. Programs of
`torch.compile` see two registered operators, which eager calls do without: torch's dispatcher would
cost more than small layers themselves.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from neural_similarity.ops.native import declines_native, suits_groups
from neural_similarity.ops.native import layer as native
from neural_similarity.ops.operands import LayerFrame, LayerTensors, Operands
from neural_similarity.ops.pointwise import apply_gain
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.similarity import dynamic_conv
from neural_similarity.ops.sphere import sphere_conv
from neural_similarity.ops.tracing import runs_eagerly
from neural_similarity.ops.window import (
    CONVOLUTIONS,
    Window,
    autocast_dtype,
    autocast_enabled,
    promote_dtype,
    unit_vectors,
    without_autocast,
)


def takes_layer(x: Tensor, weight: Tensor, frame: LayerFrame) -> bool:
    """Whether `predicted_conv` takes x: on a CPU, outside tracers, modes and `torch.func`."""
    dtype = autocast_dtype(x)
    if not x.is_cpu or dtype not in (torch.float32, torch.bfloat16) or not x.numel():
        return False
    if not suits_groups(weight.shape, frame.groups, dtype):
        return False
    if runs_eagerly(x):  # A dispatch mode, such as a counter of FLOPs, is to see the parts.
        seen = torch._C._len_torch_dispatch_stack() > 0
    else:
        seen = not torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return not seen and _has_library(frame.window.taps)


def _has_library(taps: int) -> bool:
    """Whether there is C for a window of `taps` taps; the predictor's own has at most 27."""
    return declines_native(torch.empty(0, device="cpu"), taps) is None


_has_library._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
# As `torch.compiler.assume_constant_result` does, which imports the compiler.


def predicted_conv(given: LayerTensors, frame: LayerFrame) -> Tensor:
    """y (n, o, *out) of checked parts; `takes_layer` must be True."""
    x = given.x
    if autocast_enabled(x):
        dtype = autocast_dtype(x)
        count = 3 if frame.predictor == "pooled" else 7  # Its predictor is in float32.
        narrow = [t if t is None else t.to(dtype) for t in given[:count]]
        with without_autocast(x):
            return predicted_conv(LayerTensors._make((*narrow, *given[count:])), frame)
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
        needs, frame = ctx.needs_input_grad[:8], ctx.frame
        (grad,), saved = grad_outputs, ctx.saved_tensors
        given, kept = LayerTensors(*saved[:8]), saved[8:]
        if torch.compiler.is_compiling():
            gradients = _backward_op(grad, *given, *kept, *_plain_values(frame), needs)
        elif not torch.is_grad_enabled() and runs_eagerly(grad):
            return *native.backward(grad, given, kept, frame, needs), None
        else:
            gradients = _composed_gradients(grad, given, frame, needs)
        return *[g if need else None for g, need in zip(gradients, needs, strict=True)], None


def _run_forward(given: LayerTensors, frame: LayerFrame) -> Sequence[Tensor]:
    """y and what backward keeps."""
    if torch.compiler.is_compiling():
        return _forward_op(*given, *_plain_values(frame))
    y, *kept = results = _empty_results(given, frame)
    native.forward(given, frame, y, kept)
    return results


def _empty_results(given: LayerTensors, frame: LayerFrame) -> tuple[Tensor, ...]:
    """Uninitialised y, h, r and f, the last three with adjacent channels."""
    x, output = given.x, frame.window.output_size(given.x.shape[2:])
    if min(output) < 1:
        raise ValueError(f"the window {frame.window} is larger than `input`, {tuple(x.shape)}")
    n, h = x.shape[0], given.first.shape[0]  # `len` of a tensor is a Python function.
    sizes = x.shape[2:] if frame.predictor == "light" else output, output
    dtype = x.dtype
    if frame.predictor == "pooled":  # h is behind the averages over their norms.
        sizes, h, dtype = ((), ()), h + x.shape[1], torch.float32
    hidden = x.new_empty(n, *sizes[0], h, dtype=dtype)
    raw = x.new_empty(n, *sizes[1], given.last.shape[0], dtype=dtype)
    factors = x.new_empty(n, 1, *sizes[1], dtype=torch.float32)
    operands = Operands(x, given.weight, x, frame.window, frame.groups)
    return operands.empty_output(output), hidden.movedim(-1, 1), raw.movedim(-1, 1), factors


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
    gradients = iter(torch.autograd.grad(y, wanted, grad, create_graph=again))
    return [next(gradients) if need else None for need in needs]


def _composed_output(given: LayerTensors, frame: LayerFrame) -> Tensor:
    """y of the parts that the operator stands for."""
    x, weight, bias, first, first_bias, last, last_bias, gain = given
    convolve: Any = CONVOLUTIONS[x.dim() - 2]
    options: Any = {"normalize": "input", "eps": frame.eps, "factor": frame.factor}
    if frame.predictor == "pooled":
        pooled = x, first, first_bias, last, last_bias
        wide: list[Any] = [t if t is None else promote_dtype(t) for t in pooled]
        direction = unit_vectors(wide[0].flatten(2).mean(2), 1) * frame.factor
        raw = F.linear(F.linear(direction, *wide[1:3]).relu(), *wide[3:]).tanh()
        raw = raw.view(*raw.shape, *[1] * (x.dim() - 2))
    elif frame.predictor == "light":
        hidden = convolve(x, first).relu()
        raw = sphere_conv(hidden, last, *frame.window[1:], **options)
        if last_bias is not None:
            raw = raw + last_bias.to(raw.dtype).view(-1, *[1] * (x.dim() - 2))
        raw = promote_dtype(raw).tanh()
    else:
        geometry = frame.window[1:]
        hidden = sphere_conv(x, first, *geometry, rectified=True, **options)
        raw = convolve(hidden, last, last_bias, *frame.last[1:])
    taps = frame.window.taps
    m = apply_gain(raw, gain, taps + 1 if frame.full else 1)
    m = m.unflatten(1, (taps, taps)) if frame.full else m
    operands = Operands(x, weight, m, frame.window, frame.groups)
    return dynamic_conv(operands, frame.window.output_size(x.shape[2:]), bias, None)


def _plain_values(frame: LayerFrame) -> tuple[Any, ...]:
    """The arguments that describe a frame; `_frame_of` is the inverse."""
    return *frame.window[1:], *frame[2:]


def _frame_of(given: LayerTensors, *values: Any) -> LayerFrame:
    window = Window(tuple(given.weight.shape[2:]), *map(tuple, values[:3]))
    return LayerFrame(window, same_window(tuple(given.last.shape[2:])), *values[3:])


def same_window(kernel_size: tuple[int, ...]) -> Window:
    """The window, of odd size, that keeps the number of positions."""
    ones = (1,) * len(kernel_size)
    return Window(kernel_size, ones, tuple([size // 2 for size in kernel_size]), ones)


def _call_with_frame(run: Callable[..., Sequence[Tensor]], *arguments: Any) -> tuple[Tensor, ...]:
    """`run` with the tensors and the frame of the operator's arguments."""
    given = LayerTensors(*arguments[:8])
    return tuple(run(given, _frame_of(given, *arguments[8:])))


def _backward_body(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    given, kept, needs = LayerTensors(*arguments[:8]), arguments[8:11], arguments[-1]
    frame = _frame_of(given, *arguments[11:-1])
    gradients = native.backward(grad, given, kept, frame, needs)
    return tuple([grad.new_empty(0) if g is None else g for g in gradients])


def _fake_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    pairs = zip(arguments[:8], arguments[-1], strict=True)
    return tuple(
        [torch.empty_like(t) if need and t is not None else grad.new_empty(0) for t, need in pairs]
    )


_PARTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor first, Tensor? first_bias, Tensor last, "
    "Tensor? last_bias, Tensor gain"
)
_KEPT = "Tensor hidden, Tensor raw, Tensor factors"
_FRAME = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, float eps, "
    "float factor, bool full, str predictor"
)
_forward_op = register_operator(
    "predicted_conv",
    f"({_PARTS}, {_FRAME}) -> (Tensor, Tensor, Tensor, Tensor)",
    partial(_call_with_frame, _run_forward),
    partial(_call_with_frame, _empty_results),
)
_backward_op = register_operator(
    "predicted_conv_backward",
    f"(Tensor grad, {_PARTS}, {_KEPT}, {_FRAME}, bool[] needs) -> ({', '.join(['Tensor'] * 8)})",
    _backward_body,
    _fake_backward,
)

r"""The pointwise operations of a predictor, each in one pass over a map on a GPU.

$$f(p) = \frac{s}{\sqrt{\sum X(p)^2 + \varepsilon}}, \qquad
z_c(p) = \max(0,\ y_c(p)\, f(p)), \qquad m_t(p) = g_t\, r_t(p) + i_t$$

the factors of patches X, a scaled and rectified map, and M from the predicted values r. Triton's
kernels and torch's own operations have the same six functions; traced programs, transforms and
derivatives of derivatives take torch's. The usual layers on a CPU have them in C (`layer.py`). The
functions are registered operators, so that compiled programs use Triton's too: the code that
`torch.compile` made of torch's operations was slower than the operations themselves.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from neural_similarity.ops import pointwise_torch, triton
from neural_similarity.ops.operands import channels_last
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.tracing import only_torch_ops, runs_eagerly
from neural_similarity.ops.window import Window, promote_dtype


def takes_maps(x: Tensor) -> bool:
    """Whether autograd's functions here take the maps x (n, c, *size)."""
    if not 3 <= x.dim() <= 5:
        return False
    if torch.compiler.is_compiling():
        on_gpu = x.is_cuda and x.dim() < 5
        return on_gpu and not torch.compiler.is_exporting() and triton.takes_traced(x)
    if not runs_eagerly(x):
        return False
    if x.is_cpu:
        return not _is_watched()
    return x.is_cuda and triton.declines_triton(x, 1) is None


def _is_watched() -> bool:
    """Whether a mode, such as a counter of FLOPs, is to see torch's operations."""
    return torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack() > 0


def implementation(x: Tensor) -> Any:
    """The module whose functions take the maps x eagerly."""
    if type(x) not in (Tensor, nn.Parameter):  # shapes without data, of a trace
        return pointwise_torch
    if x.is_cuda or triton.is_interpreted():
        from neural_similarity.ops.triton import pointwise

        return pointwise
    return pointwise_torch


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), float32; `takes_maps(x)` is True."""
    return _Factors.apply(x, window, eps, factor)


def scale_maps(y: Tensor, factors: Tensor, *, rectified: bool) -> Tensor:
    """y (n, c, *size) times positive factors (n, 1, *size), in y's type, and its ReLU if asked."""
    if takes_maps(y):
        return _Scaled.apply(y, factors, rectified)
    return pointwise_torch.scale_maps(y, factors, rectified)


def apply_gain(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), plus 1 in every `every`-th channel (0: in none).

    In float32 at least: bfloat16 would lose predictions that are small against the identity.

    Raises:
        ValueError: `gain` has another number of channels.
    """
    if gain.shape != raw.shape[1:2]:
        raise ValueError(f"`gain` must be {tuple(raw.shape[1:2])}, got {tuple(gain.shape)}")
    if takes_maps(raw):
        return _Gained.apply(raw, gain, every)
    if only_torch_ops():  # Core ML has no addcmul.
        start, gain = pointwise_torch.gain_parts(raw, gain, every)
        return start + promote_dtype(raw) * gain
    return pointwise_torch.apply_gain(raw, gain, every)


class _Factors(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
        factors = _functions(x).patch_factors(x, window, eps, factor)
        ctx.save_for_backward(x, factors)
        ctx.window, ctx.factor = window, factor
        return factors

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,), (x, factors) = grad_outputs, ctx.saved_tensors
        functions = _gradient_functions(grad, x)
        gradient = functions.patch_factors_gradient(grad, x, factors, ctx.window, ctx.factor)
        return gradient, None, None, None


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
        z = _functions(y).scale_maps(y, factors, rectified)
        # Keep a ReLU's output, as torch does; any other output may be changed in place later.
        ctx.save_for_backward(z if rectified else y, factors)
        ctx.rectified = rectified
        return z

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (z, factors) = grad_outputs, ctx.saved_tensors
        functions = _gradient_functions(grad, z)
        return *functions.scaled_gradient(grad, z, factors, ctx.rectified), None


class _Gained(Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, gain: Tensor, every: int) -> Tensor:
        ctx.save_for_backward(raw, gain)
        return _functions(raw).apply_gain(raw, gain, every)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (raw, gain) = grad_outputs, ctx.saved_tensors
        return *_gradient_functions(grad, raw).gained_gradient(grad, raw, gain), None


def _functions(x: Tensor) -> Any:
    """The six functions for the maps x."""
    eager = x.is_cpu and not torch.compiler.is_compiling()
    return implementation(x) if eager else _Registered


def _gradient_functions(grad: Tensor, x: Tensor) -> Any:
    """The same in a backward pass: torch's where it is differentiated again, or vmapped."""
    if torch.compiler.is_compiling():
        return _Registered
    again = torch.is_grad_enabled() or (grad.is_cpu and not runs_eagerly(grad))
    return pointwise_torch if again else _functions(x)


def _empty_like(maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(channels_last(maps), dtype=dtype)


_WINDOW = "SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation"
_factors_op = register_operator(
    "patch_factors",
    f"(Tensor x, {_WINDOW}, float eps, float factor) -> Tensor",
    lambda x, *rest: implementation(x).patch_factors(x, _pair_window(*rest[:4]), *rest[4:]),
    lambda x, *rest: x.new_empty(
        len(x), 1, *_pair_window(*rest[:4]).output_size(x.shape[2:]), dtype=torch.float32
    ),
)
_factors_backward_op = register_operator(
    "patch_factors_backward",
    f"(Tensor grad, Tensor x, Tensor factors, {_WINDOW}, float factor) -> Tensor",
    lambda grad, x, factors, *rest: implementation(x).patch_factors_gradient(
        grad, x, factors, _pair_window(*rest[:4]), rest[4]
    ),
    lambda _grad, x, *_: _empty_like(x),
)
_scaled_op = register_operator(
    "scaled",
    "(Tensor y, Tensor factors, bool rectified) -> Tensor",
    lambda y, *rest: implementation(y).scale_maps(y, *rest),
    lambda y, *_: _empty_like(y),
)
_scaled_backward_op = register_operator(
    "scaled_backward",
    "(Tensor grad, Tensor z, Tensor factors, bool rectified) -> (Tensor, Tensor)",
    lambda grad, *rest: implementation(grad).scaled_gradient(grad, *rest),
    lambda _grad, z, factors, _rectified: (_empty_like(z), torch.empty_like(factors)),
)
_gained_op = register_operator(
    "gained",
    "(Tensor raw, Tensor gain, int every) -> Tensor",
    lambda raw, *rest: implementation(raw).apply_gain(raw, *rest),
    lambda raw, *_: _empty_like(raw, torch.float32),
)
_gained_backward_op = register_operator(
    "gained_backward",
    "(Tensor grad, Tensor raw, Tensor gain) -> (Tensor, Tensor)",
    lambda grad, *rest: implementation(grad).gained_gradient(grad, *rest),
    lambda _grad, raw, gain: (_empty_like(raw), torch.empty_like(gain)),
)


def _pair_window(*sides: Any) -> Window:
    return Window(*map(tuple, sides))


class _Registered:
    """The functions as registered operators."""

    @staticmethod
    def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
        return _factors_op(x, *window, eps, factor)

    @staticmethod
    def patch_factors_gradient(
        grad: Tensor, x: Tensor, factors: Tensor, window: Window, factor: float
    ) -> Tensor:
        return _factors_backward_op(grad, x, factors, *window, factor)

    scale_maps = staticmethod(_scaled_op)
    scaled_gradient = staticmethod(_scaled_backward_op)
    apply_gain = staticmethod(_gained_op)
    gained_gradient = staticmethod(_gained_backward_op)

r"""The pointwise operations of a predictor, each in one pass over a map on a GPU.

$$f(p) = \frac{s}{\sqrt{\sum X(p)^2 + \varepsilon}}, \qquad
z_c(p) = \max(0,\ y_c(p)\, f(p)), \qquad m_t(p) = g_t\, r_t(p) + i_t$$

the factors of patches X, a scaled and rectified map, and M from the predicted values r. Triton's
kernels and torch's own operations have the same six functions; traced and compiled programs,
transforms and derivatives of derivatives take torch's. The usual layers on a CPU have them in C
(`layer.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from neural_similarity.ops import pointwise_torch, triton
from neural_similarity.ops.tracing import runs_eagerly
from neural_similarity.ops.window import Window


def takes_maps(x: Tensor) -> bool:
    """Whether autograd's functions here take the maps x (n, c, *size)."""
    if not 3 <= x.dim() <= 5 or not runs_eagerly(x):
        return False
    if x.is_cpu:  # A mode, such as a counter of FLOPs, is to see torch's operations.
        return torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack() == 0
    return x.is_cuda and triton.declines_triton(x, 1) is None


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
    return pointwise_torch.apply_gain(raw, gain, every)


class _Factors(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
        factors = implementation(x).patch_factors(x, window, eps, factor)
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
        z = implementation(y).scale_maps(y, factors, rectified)
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
        return implementation(raw).apply_gain(raw, gain, every)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (raw, gain) = grad_outputs, ctx.saved_tensors
        return *_gradient_functions(grad, raw).gained_gradient(grad, raw, gain), None


def _gradient_functions(grad: Tensor, x: Tensor) -> Any:
    """The same in a backward pass: torch's where it is differentiated again, or vmapped."""
    again = torch.is_grad_enabled() or not runs_eagerly(grad)
    return pointwise_torch if again else implementation(x)

r"""What a predictor does between its convolutions, one kernel each on a GPU.

$$f(p) = \frac{s}{\sqrt{\sum X(p)^2 + \varepsilon}}, \qquad
z_c(p) = \max(0,\ y_c(p)\, f(p)), \qquad m_t(p) = g_t\, r_t(p) + i_t$$

the factors of patches X, a scaled and rectified map, and M from the predicted numbers r. Elsewhere,
and where something watches the operations (`tracing.unwatched`), they are torch's own, which
`torch.compile` fuses as well. Derivatives of derivatives are torch's everywhere.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn import grad as convolution_gradients

from neural_similarity.ops import triton
from neural_similarity.ops.tracing import unwatched
from neural_similarity.ops.window import Window, promoted

_INPUTS = {1: convolution_gradients.conv1d_input, 2: convolution_gradients.conv2d_input}


def takes(x: Tensor) -> bool:
    """Whether kernels of a GPU take the maps x (n, c, *size)."""
    return x.is_cuda and unwatched(x) and x.dim() > 2 and triton.declines(x, 1) is None


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch of x, which `takes` takes, (n, 1, *out), float32."""
    return _Factors.apply(x, window, eps, factor)


def scaled(y: Tensor, factors: Tensor, *, rectified: bool) -> Tensor:
    """y (n, c, *size) times positive factors (n, 1, *size), in y's type, and its ReLU if asked."""
    if takes(y):
        return _Scaled.apply(y, factors, rectified)
    z = (y * factors).to(y.dtype)
    return F.relu(z) if rectified else z


def gained(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), plus 1 in every `every`-th channel; in none if that is 0.

    In float32 at least: a prediction in bfloat16 would lose what is small beside the identity.
    """
    if takes(raw):
        return _Gained.apply(raw, gain, every)
    raw, shape = promoted(raw), (-1, *[1] * (raw.dim() - 2))
    start = torch.zeros_like(gain, dtype=raw.dtype)
    if every:
        start = (torch.arange(len(gain), device=gain.device) % every == 0).to(raw.dtype)
    return torch.addcmul(start.view(shape), raw, gain.to(raw.dtype).view(shape))


class _Factors(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
        from neural_similarity.ops.triton import pointwise

        factors = pointwise.patch_factors(x, window, eps, factor)
        ctx.save_for_backward(x, factors)
        ctx.window, ctx.factor = window, factor
        return factors

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,), (x, factors) = grad_outputs, ctx.saved_tensors
        if not torch.is_grad_enabled():
            from neural_similarity.ops.triton import pointwise

            gradient = pointwise.patch_factors_gradient(grad, x, factors, ctx.window, ctx.factor)
            return gradient, None, None, None
        window = ctx.window
        energy = grad * factors.pow(3) * (-1 / ctx.factor**2)
        box, shape = energy.new_ones(1, 1, *window.kernel_size), (len(x), 1, *x.shape[2:])
        pixels = _INPUTS[x.dim() - 2](
            shape, box, energy, window.stride, window.padding, window.dilation
        )
        return (x * pixels).to(x.dtype), None, None, None


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
        from neural_similarity.ops.triton import pointwise

        z = pointwise.scaled(y, factors, rectified)
        ctx.save_for_backward(z, factors)
        ctx.rectified = rectified
        return z

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (z, factors) = grad_outputs, ctx.saved_tensors
        if not torch.is_grad_enabled():
            from neural_similarity.ops.triton import pointwise

            return *pointwise.scaled_gradient(grad, z, factors, ctx.rectified), None
        grad = grad * (z > 0) if ctx.rectified else grad
        of_factors = (promoted(grad) * z).sum(1, keepdim=True) / factors
        return (grad * factors).to(z.dtype), of_factors, None


class _Gained(Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, gain: Tensor, every: int) -> Tensor:
        from neural_similarity.ops.triton import pointwise

        ctx.save_for_backward(raw, gain)
        return pointwise.gained(raw, gain, every)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (raw, gain) = grad_outputs, ctx.saved_tensors
        if not torch.is_grad_enabled():
            from neural_similarity.ops.triton import pointwise

            return *pointwise.gained_gradient(grad, raw, gain), None
        shape = (-1, *[1] * (raw.dim() - 2))
        positions = (0, *range(2, raw.dim()))
        of_gain = (grad * raw).sum(positions).to(gain.dtype)
        return (grad * gain.view(shape)).to(raw.dtype), of_gain, None

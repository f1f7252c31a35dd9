r"""ReLU of batch-normalised maps, times one number per position or pooled, in few passes.

$$z_c(p) = \max\left(0,\ w_c\,\frac{t_c(p) - \mu_c}{\sqrt{\sigma_c^2 + \varepsilon}} + b_c\right),
\qquad t_c(p) = d(p)\, x_c(p)$$

with the mean μ and the variance σ² of every channel over all positions of the batch, as in
training (`affine_relu` has constants); pooled, the largest z of every 2×2 window, without d. The
first is what follows the patch-normalised convolution of a predictor, the second what ends a stage
of a network. They read x three times, write z, and keep x and d alone; torch's operations one by
one read and write maps of that size two to five times as often, and keep two or three. Only in C
(`native`): the caller takes torch's elsewhere.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from neural_similarity.ops import native, positionwise
from neural_similarity.ops.affine_relu import gradients_with_graph, pooled_relu
from neural_similarity.ops.moments import count, moments_of
from neural_similarity.ops.registration import register


def norm_relu(
    d: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """z, and the mean and the biased variance of every channel, which have no gradient.

    Args:
        d: (n, 1, *size), float32; None for ones.
        x: (n, c, *size), float32 or bfloat16.
        weight: w (c), float32.
        bias: b (c), float32.
        eps: Added to the variance.
        pool: Take the largest of every 2×2 window of x (n, c, h, w); a last odd row or column
            counts in μ and σ² alone. d is None, and z (n, c, h // 2, w // 2) is channels-last.
    """
    return _NormRelu.apply(d, x, weight, bias, eps, pool)


def _forward(
    d: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = moments_of(d, x)
    line = normalizing_line(weight, bias, mean, variance, eps)
    return native.norm_relu(d, x, line, pool), mean, variance


def _backward(
    grad: Tensor,
    d: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    pool: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of d (empty where there is none), x, weight and bias."""
    line = normalizing_line(weight, bias, mean, variance, eps)
    first, second = native.norm_sums(d, x, grad, line, mean, pool).float()
    tilt = -line[0] * second / ((variance + eps) * count(x))
    level = -line[0] * first / count(x) - tilt * mean
    line = torch.cat((line, level[None], tilt[None]))
    grad_d, grad_x = native.norm_relu_backward(d, x, grad, line, pool)
    return grad_d, grad_x, second * (variance + eps).rsqrt(), first


def _by_torch(
    eps: float, pool: bool, d: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """z by torch's operations."""
    t = F.batch_norm(positionwise.scaled(d, x), None, None, weight, bias, True, 0.0, eps)
    return pooled_relu(t, pool)


def normalizing_line(
    weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """Slope and offset of every channel, (2, c): its normalisation as a function of t."""
    slope = weight * (variance + eps).rsqrt()
    return torch.stack((slope, bias - mean * slope))


def _fake_forward(d, x, weight, bias, eps, pool):
    return native.empty_relu(x, pool), torch.empty_like(weight), torch.empty_like(weight)


def _fake_backward(grad, d, x, weight, bias, mean, variance, eps, pool):
    grad_d = weight.new_empty(0) if d is None else torch.empty_like(d)
    return grad_d, torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


_forward_op = register(
    "norm_relu",
    "(Tensor? d, Tensor x, Tensor weight, Tensor bias, float eps, bool pool) "
    "-> (Tensor, Tensor, Tensor)",
    _forward,
    _fake_forward,
)
_backward_op = register(
    "norm_relu_backward",
    "(Tensor grad, Tensor? d, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, "
    "float eps, bool pool) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


class _NormRelu(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        d, x, weight, bias, *options = operands
        z, mean, variance = _forward_op(*operands)
        ctx.save_for_backward(d, x, weight, bias, mean, variance)
        ctx.options = options
        ctx.mark_non_differentiable(mean, variance)
        return z, mean, variance

    @staticmethod
    def backward(ctx, *grad_outputs):
        grad, (d, x, weight, bias, mean, variance) = grad_outputs[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            by_torch, operands = partial(_by_torch, *ctx.options), (d, x, weight, bias)
            return *gradients_with_graph(by_torch, operands, grad), None, None
        grad_d, *others = _backward_op(grad, d, x, weight, bias, mean, variance, *ctx.options)
        return None if d is None else grad_d, *others, None, None

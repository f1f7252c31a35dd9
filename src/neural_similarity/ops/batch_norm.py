r"""Batch normalisation by given statistics, pool and ReLU as one operator, with its derivatives.

$$\mu_c = \frac1N \sum_p x_c(p), \qquad \sigma_c^2 = \frac1N \sum_p (x_c(p) - \mu_c)^2,
\qquad z_c(w) = \max\left(0,\ \max_{p \in w}\, a_c\, x_c(p) + b_c\right)$$

over the N positions p of all images, and over windows w. For the gradient-based methods of few-shot
learning, which differentiate twice: torch's second derivatives of batch normalisation and pool
take longer than the convolutions. It exists only in C (`native`), for maps that
`native.available` accepts.

torch's time over this one's, float32 on two cores with AVX2: 2.93 for a task of MAML, 1.12 and 1.15
for tasks by transductive and by support statistics, but 0.91 to 0.98 for plain training, which
therefore uses torch's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops import native
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.window import promote_dtype


def channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """μ and σ², each (c,), float32, of x (n, c, h, w)."""
    return _Moments.apply(x)


def normalizing_line(
    weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """Slope and offset of every channel, (2, c): its normalisation as a function of x."""
    slope = weight * (variance + eps).rsqrt()
    return torch.stack((slope, bias - mean * slope))


def pooled_relu(x: Tensor, line: Tensor) -> Tensor:
    """z (n, c, h // 2, w // 2), channels-last, of x (n, c, h, w).

    Args:
        x: float32 or bfloat16.
        line: a and b (2, c), float32.
    """
    return _PooledRelu.apply(x, line)


class _Moments(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        (x,) = operands
        # Centred at one value of each channel, so that a mean far from zero costs no precision.
        centre = x.flatten(2)[0, :, 0].float().contiguous()
        first, second = native.channel_sums(x, centre) / _channel_count(x)
        mean = (centre + first).float()
        ctx.save_for_backward(x, mean)
        return mean, (second - first.square()).float()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad_mean, grad_variance), (x, mean) = grad_outputs, ctx.saved_tensors
        tilt = grad_variance * (2 / _channel_count(x))
        level = grad_mean / _channel_count(x) - tilt * mean
        return torch.addcmul(level.view(-1, 1, 1), x, tilt.view(-1, 1, 1)).to(x.dtype)


def _channel_count(x: Tensor) -> int:
    """The number of values in each channel."""
    return x.numel() // x.shape[1]


class _PooledRelu(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        x, line = operands
        z = _pool_op(x, line)
        ctx.save_for_backward(x, line, z.detach())
        return z

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (x, line, z) = grad_outputs, ctx.saved_tensors
        place = x.detach(), line.detach()
        passed = promote_dtype(grad).masked_fill(z <= 0, 0)
        grad_x = _Scattered.apply((passed * line[0].view(-1, 1, 1)).to(x.dtype), *place)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        slope = (passed * _Chosen.apply(x, *place)).sum((0, 2, 3))
        return grad_x, torch.stack((slope, passed.sum((0, 2, 3))))


class _Linear(Function):
    """Linear in its first operand; x and `line` only select pixels, and get no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs[1:])


class _Chosen(_Linear):
    @staticmethod
    def forward(*operands):
        return _chosen_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return _Scattered.apply(*grad_outputs, *ctx.saved_tensors), None, None


class _Scattered(_Linear):
    """`native.pool_scattered`, the transpose of `_Chosen`."""

    @staticmethod
    def forward(*operands):
        return _scattered_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return _Chosen.apply(*grad_outputs, *ctx.saved_tensors), None, None


_pool_op = register_operator(
    "pool_relu",
    "(Tensor x, Tensor line) -> Tensor",
    native.pool_relu,
    lambda x, _line: native.empty_pooled(x),
)
_chosen_op = register_operator(
    "pool_chosen",
    "(Tensor maps, Tensor x, Tensor line) -> Tensor",
    native.pool_chosen,
    lambda maps, *_: native.empty_pooled(maps),
)
_scattered_op = register_operator(
    "pool_scattered",
    "(Tensor pooled, Tensor x, Tensor line) -> Tensor",
    native.pool_scattered,
    lambda _pooled, x, _line: torch.empty_like(x),
)

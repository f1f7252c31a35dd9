r"""Mean and biased variance of every channel of maps, with gradients of every order.

$$\mu_c = \frac1N \sum_p x_c(p), \qquad \sigma_c^2 = \frac1N \sum_p (x_c(p) - \mu_c)^2$$

over the N positions p of all images. Only in C (`native`), for what `native.available` says.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops import native


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """μ and σ², each (c,), float32, of x (n, c, *size)."""
    return _Moments.apply(x)


def moments_of(d: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Those of d x, for d (n, 1, *size), by sums around a number of each channel in float64."""
    centre = _first(x) if d is None else _first(x) * _first(d)
    first, second = native.norm_sums(d, x, None, None, centre) / count(x)
    return (centre + first).float(), (second - first.square()).float()


def count(x: Tensor) -> int:
    """N."""
    return x.numel() // x.shape[1]


def _first(maps: Tensor) -> Tensor:
    """The first position's numbers, (c), in float32."""
    return maps.flatten(2)[0, :, 0].float().contiguous()


class _Moments(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        (x,) = operands
        mean, variance = moments_of(None, x)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad_mean, grad_variance), (x, mean) = grad_outputs, ctx.saved_tensors
        tilt = grad_variance * (2 / count(x))
        level = grad_mean / count(x) - tilt * mean
        tilt, level = (line.view(-1, *[1] * (x.dim() - 2)) for line in (tilt, level))
        return torch.addcmul(level, x, tilt).to(x.dtype)

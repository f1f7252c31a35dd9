r"""Predicted maps times a gain of every channel, plus what M starts from, in one pass.

$$m_c(p) = s_c + g_c\, r_c(p)$$

in float32 at least: a prediction in bfloat16 would lose what is small beside the identity.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops import native
from neural_similarity.ops.registration import register
from neural_similarity.ops.window import promoted


def gained(raw: Tensor, gain: Tensor, start: Tensor) -> Tensor:
    """m like raw, in the wider of float32 and raw's dtype.

    Args:
        raw: r (n, c, *size).
        gain: g (c).
        start: s (c), without a gradient.
    """
    like = gain.dtype == torch.float32 and gain.device == raw.device
    if not (like and native.available(raw)):
        return _by_torch(raw, gain, start)
    apply = _Gained.apply if torch.is_grad_enabled() else _forward_op
    return apply(raw, gain, start)


def _by_torch(raw: Tensor, gain: Tensor, start: Tensor) -> Tensor:
    raw = promoted(raw)
    gain, start = (t.to(raw.dtype).view(-1, *[1] * (raw.dim() - 2)) for t in (gain, start))
    return torch.addcmul(start, raw, gain)


def _forward(raw: Tensor, gain: Tensor, start: Tensor) -> Tensor:
    return native.affine(raw, torch.stack((gain, start)))


def _backward(grad: Tensor, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of raw and gain."""
    grad_raw, grad_gain = native.affine_backward(raw, grad, gain.contiguous())
    return grad_raw, grad_gain.float()


def _fake_forward(raw, gain, start):
    del gain, start
    return torch.empty_like(raw, dtype=torch.float32)


def _fake_backward(grad, raw, gain):
    del grad
    return torch.empty_like(raw), torch.empty_like(gain)


_forward_op = register(
    "gained", "(Tensor raw, Tensor gain, Tensor start) -> Tensor", _forward, _fake_forward
)
_backward_op = register(
    "gained_backward",
    "(Tensor grad, Tensor raw, Tensor gain) -> (Tensor, Tensor)",
    _backward,
    _fake_backward,
)


class _Gained(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        ctx.save_for_backward(*operands[:2])
        return _forward_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (raw, gain) = grad_outputs, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *_backward_op(grad, raw, gain), None
        grad_raw = gained(grad, gain, torch.zeros_like(gain)).to(raw.dtype)
        return grad_raw, (grad * raw).flatten(2).sum((0, 2)), None

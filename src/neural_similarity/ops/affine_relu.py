r"""ReLU of an affine function of every channel, times a number per position or pooled, in one pass.

$$z_c(p) = \max\left(0,\ a_c\, t_c(p) + b_c\right), \qquad t_c(p) = d(p)\, x_c(p)$$

which batch normalisation by constants is, as in evaluation; pooled, the largest z of every 2×2
window, without d. Only in C (`native`), for what `native.available` says; `norm_relu` has the
statistics of the batch.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from neural_similarity.ops import native, positionwise
from neural_similarity.ops.registration import register
from neural_similarity.ops.window import promoted


def affine_relu(d: Tensor | None, x: Tensor, line: Tensor, pool: bool = False) -> Tensor:
    """z, like x or (n, c, h // 2, w // 2).

    Args:
        d: (n, 1, *size), float32; None for ones.
        x: (n, c, *size), float32 or bfloat16.
        line: a and b (2, c), float32.
        pool: Take the largest of every 2×2 window of x (n, c, h, w). d is None, and z is
            channels-last.
    """
    apply = _AffineRelu.apply if torch.is_grad_enabled() else _forward_op
    return apply(d, x, line, pool)


def pooled_relu(t: Tensor, pool: bool) -> Tensor:
    """The ReLU of t, or of the largest of its 2×2 windows, by torch's operations."""
    return F.relu(F.max_pool2d(t, 2) if pool else t)


def gradients_with_graph(
    function: Callable[..., Tensor], operands: Iterable[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of a function's operands, to be differentiated again; None: none is needed."""
    # By names of their own: one operand may be in the history of another, as where a layer is
    # called twice, and that part of its gradient is not this function's.
    own = [None if t is None else t.view_as(t) for t in operands]
    wanted = [t for t in own if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(function(*own), wanted, grad, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in own]


def _by_torch(pool: bool, d: Tensor | None, x: Tensor, line: Tensor) -> Tensor:
    """z by torch's operations."""
    slope, offset = line.view(2, -1, *[1] * (x.dim() - 2))
    t = promoted(positionwise.scaled(d, x)) * slope + offset
    return pooled_relu(t.to(x.dtype), pool)


def _backward(
    grad: Tensor, d: Tensor | None, x: Tensor, line: Tensor, pool: bool, needs_line: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of d, x and `line`; empty where there is none or it is not needed."""
    nothing = torch.zeros_like(line)
    grad_d, grad_x = native.norm_relu_backward(d, x, grad, torch.cat((line, nothing)), pool)
    if not needs_line:
        return grad_d, grad_x, line.new_empty(0)
    sums = native.norm_sums(d, x, grad, line, nothing[0], pool)
    return grad_d, grad_x, sums.flip(0).float()


def _fake_forward(d, x, line, pool):
    del d, line
    return native.empty_relu(x, pool)


def _fake_backward(grad, d, x, line, pool, needs_line):
    grad_d = line.new_empty(0) if d is None else torch.empty_like(d)
    return grad_d, torch.empty_like(x), line.new_empty(line.shape if needs_line else 0)


_forward_op = register(
    "affine_relu",
    "(Tensor? d, Tensor x, Tensor line, bool pool) -> Tensor",
    native.norm_relu,
    _fake_forward,
)
_backward_op = register(
    "affine_relu_backward",
    "(Tensor grad, Tensor? d, Tensor x, Tensor line, bool pool, bool needs_line) "
    "-> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


_chosen_op = register(
    "pool_chosen",
    "(Tensor maps, Tensor x, Tensor line) -> Tensor",
    native.chosen,
    lambda maps, *_: native.empty_relu(maps, True),
)
_scattered_op = register(
    "pool_scattered",
    "(Tensor pooled, Tensor x, Tensor line) -> Tensor",
    native.scattered,
    lambda _pooled, x, _line: torch.empty_like(x),
)


def _pooled_gradients(grad: Tensor, x: Tensor, line: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and `line` where windows are pooled, to be differentiated again."""
    place = x.detach(), line.detach()
    passed = promoted(grad).masked_fill(native.norm_relu(None, *place, pool=True) <= 0, 0)
    grad_x = _Scattered.apply((passed * line[0].view(-1, 1, 1)).to(x.dtype), *place)
    slope = (passed * _Chosen.apply(x, *place)).sum((0, 2, 3))
    return grad_x, torch.stack((slope, passed.sum((0, 2, 3))))


class _Linear(Function):
    """Linear in its first operand; x and `line`, which choose, have no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs[1:])


class _Chosen(_Linear):
    """`native.chosen`."""

    @staticmethod
    def forward(*operands):
        return _chosen_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return _Scattered.apply(*grad_outputs, *ctx.saved_tensors), None, None


class _Scattered(_Linear):
    """`native.scattered`, the transpose of `_Chosen`."""

    @staticmethod
    def forward(*operands):
        return _scattered_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return _Chosen.apply(*grad_outputs, *ctx.saved_tensors), None, None


class _AffineRelu(Function):
    @staticmethod
    def forward(ctx: Any, *operands):
        *tensors, ctx.pool = operands
        ctx.save_for_backward(*tensors)
        return _forward_op(*operands)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (d, x, line) = grad_outputs, ctx.saved_tensors
        if torch.is_grad_enabled() and ctx.pool:
            return None, *_pooled_gradients(grad, x, line), None
        if torch.is_grad_enabled():
            return *gradients_with_graph(partial(_by_torch, ctx.pool), (d, x, line), grad), None
        needs = ctx.needs_input_grad[2]
        grad_d, grad_x, grad_line = _backward_op(grad, d, x, line, ctx.pool, needs)
        return None if d is None else grad_d, grad_x, grad_line if needs else None, None

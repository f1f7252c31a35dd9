r"""Products of maps with one number per position, each in a single pass over memory.

`dot`: $d(p) = \sum_c [g_c(p) > 0]\, x_c(p)\, y_c(p)$ and `scale`:
$z_c(p) = [g_c(p) > 0]\, d(p)\, x_c(p)$ are each other's derivatives, so that these two registered
operators give gradients of every order. The gate g is optional and has no gradient; where it is
not a number it is open.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from neural_similarity.ops import native
from neural_similarity.ops.registration import Operator, batched, register
from neural_similarity.ops.tracing import by_torch
from neural_similarity.ops.window import promoted

Finish = Callable[[Tensor | None, Tensor], Tensor]
"""What follows a convolution: of d (n, 1, *size), or None for ones, and x (n, c, *size)."""


def dot(x: Tensor, y: Tensor, gate: Tensor | None = None) -> Tensor:
    """d (n, 1, *size) of x, y and gate (n, c, *size), in float32 at least."""
    if by_torch():
        return _plain_dot(x, y, gate)
    return _Dot.apply(x, y, gate)


def energy(x: Tensor) -> Tensor:
    """`dot` of x with itself."""
    return _plain_dot(x, x, None) if by_torch() else _Energy.apply(x)


def scale(d: Tensor, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """z (n, c, *size) of d (n, 1, *size), and of x and gate (n, c, *size); in x's dtype."""
    if by_torch():
        return _plain_scale(d, x, gate)
    return _Scale.apply(d, x, gate)


def scaled(d: Tensor | None, x: Tensor) -> Tensor:
    """`scale`; x itself where there is no d."""
    return x if d is None else scale(d, x)


def rectified(d: Tensor | None, x: Tensor) -> Tensor:
    """The ReLU of `scaled`, for a d that is never negative."""
    # Dynamo refuses one tensor twice, and a gate has no gradient.
    return F.relu(x) if d is None else scale(d, x, x.detach())


def _plain_dot(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    product = promoted(x) * promoted(y)
    return _gated(product, gate).sum(1, keepdim=True)


def _plain_scale(d: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    return _gated((x * d).to(x.dtype), gate)


def _gated(product: Tensor, gate: Tensor | None) -> Tensor:
    return product if gate is None else product.masked_fill(gate <= 0, 0)


def _dot(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    if native.declines(x, 1) or x.dtype != y.dtype:
        return _plain_dot(x, y, gate)
    return native.dot(x, y, gate)


def _scale(d: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    if native.declines(x, 1) or d.dtype != torch.float32:
        # In the layout of x, as the other; torch's operations choose by all operands.
        return torch.empty_like(x).copy_(_plain_scale(d, x, gate))
    return native.scale(d, x, gate)


def _fake_dot(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], 1, *x.shape[2:], dtype=torch.promote_types(x.dtype, torch.float))


def _fake_scale(d: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    return torch.empty_like(x)


def _register(name: str, schema: str, body: Operator, fake: Operator) -> Operator:
    def vmap(info, in_dims, *operands):
        """The examples are one larger batch."""
        together = [
            None if t is None else batched(t, dim, info.batch_size).flatten(0, 1)
            for t, dim in zip(operands, in_dims, strict=True)
        ]
        return operator(*together).unflatten(0, (info.batch_size, -1)), 0

    operator = register(name, schema, body, fake, vmap)
    return operator


_dot_op = _register("dot", "(Tensor x, Tensor y, Tensor? gate) -> Tensor", _dot, _fake_dot)
_scale_op = _register("scale", "(Tensor d, Tensor x, Tensor? gate) -> Tensor", _scale, _fake_scale)


def _differentiable(function: type[Function], operator: Operator) -> Operator:
    """Dynamo traces one autograd function only, and compiled backward passes need no second."""
    return operator if torch.compiler.is_compiling() else function.apply


class _Dot(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y, gate):
        return _dot_op(x, y, gate)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (x, y, gate) = grad_outputs, ctx.saved_tensors
        scale = _differentiable(_Scale, _scale_op)
        needs_x, needs_y, _ = ctx.needs_input_grad
        grad_x = scale(grad, y, gate).to(x.dtype) if needs_x else None
        grad_y = scale(grad, x, gate).to(y.dtype) if needs_y else None
        return grad_x, grad_y, None


class _Energy(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return _dot_op(x, x, None)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (x,) = grad_outputs, ctx.saved_tensors
        return _differentiable(_Scale, _scale_op)(2 * grad, x, None)


class _Scale(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(d, x, gate):
        return _scale_op(d, x, gate)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (d, x, gate) = grad_outputs, ctx.saved_tensors
        dot, scale = _differentiable(_Dot, _dot_op), _differentiable(_Scale, _scale_op)
        needs_d, needs_x, _ = ctx.needs_input_grad
        grad_d = dot(grad, x, gate).to(d.dtype) if needs_d else None
        return grad_d, scale(d, grad, gate) if needs_x else None, None

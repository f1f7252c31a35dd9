r"""What both dynamic operators share: registration, derivatives, batching.

An operator $f(x, W, M)$ is linear in each argument, so its derivatives of every order are made of
$f$ and of its vector-Jacobian product $b(g; x, W, M) = (g_x, g_W, g_M)$ alone. Both are registered
operators; a pair of autograd functions joins them, because `torch.func` refuses
`register_autograd` on custom operators (https://github.com/pytorch/pytorch/issues/168393).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neural_similarity.ops import registration
from neural_similarity.ops.backend import choose_implementation
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.registration import Operator, batch_first
from neural_similarity.ops.window import Window

_OPERANDS = (
    "Tensor x, Tensor weight, Tensor similarity, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str backend"
)


def register_trilinear(name: str, *, full: bool) -> Operator:
    """The differentiable function with a diagonal or a full M, made of two registered operators.

    It takes x (n, c, *size), weight (o, c/groups, *kernel), similarity (n, b, K, *out) or
    (n, b, K, K, *out) for b blocks of channels, stride, padding, dilation (tuples), groups
    and the backend, and returns (n, o, *out).
    """
    return _differentiable_function(_register_forward(name, full), _register_backward(name, full))


def _register_forward(name: str, full: bool) -> Operator:
    def forward(*arguments):
        *operands, backend = arguments
        given = _operands_of(*operands)
        return choose_implementation(backend, given, full=full).forward(given)

    def fake(*arguments):
        return _operands_of(*arguments[:-1]).empty_output()

    def vmap(info, in_dims, *arguments):
        operands, geometry = arguments[:3], arguments[3:]
        if in_dims[1] is None:  # one kernel: the examples are one larger batch
            x, similarity = (
                batch_first(operands[i], in_dims[i], info.batch_size).flatten(0, 1) for i in (0, 2)
            )
            y = operator(x, operands[1], similarity, *geometry)
            return y.unflatten(0, (info.batch_size, -1)), 0
        # A kernel for each example cannot be one batch: the operator has one kernel.
        examples = _vmapped_examples(operands, in_dims[:3], info.batch_size)
        return torch.stack([operator(*example, *geometry) for example in examples]), 0

    operator = registration.register_operator(name, f"({_OPERANDS}) -> Tensor", forward, fake, vmap)
    return operator


def _register_backward(name: str, full: bool) -> Operator:
    def backward(*arguments):
        grad, *operands, backend, needs = arguments
        given = _operands_of(*operands)
        return choose_implementation(backend, given, full=full).backward(grad, given, needs)

    def fake(*arguments):
        _, *operands, _, needs = arguments
        return _operands_of(*operands).empty_gradients(needs)

    def vmap(info, in_dims, *arguments):
        operands, rest = arguments[:4], arguments[4:]
        examples = _vmapped_examples(operands, in_dims[:4], info.batch_size)
        gradients = [operator(*example, *rest) for example in examples]
        return tuple(torch.stack(parts) for parts in zip(*gradients, strict=True)), (0, 0, 0)

    schema = f"(Tensor grad, {_OPERANDS}, bool[] needs) -> (Tensor, Tensor, Tensor)"
    operator = registration.register_operator(f"{name}_backward", schema, backward, fake, vmap)
    return operator


def _differentiable_function(forward_op: Operator, backward_op: Operator) -> Operator:
    class Forward(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return forward_op(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:3])
            ctx.geometry = inputs[3:]

        @staticmethod
        def backward(ctx, *grad_outputs):
            needs = ctx.needs_input_grad[:3]
            # Dynamo traces one autograd function only, and compiled backward passes need no second.
            derivative = backward_op if torch.compiler.is_compiling() else Backward.apply
            gradients = derivative(*grad_outputs, *ctx.saved_tensors, *ctx.geometry, needs)
            return *_needed_gradients(needs, gradients), None, None, None, None, None

    class Backward(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return backward_op(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:4])
            ctx.geometry, ctx.needs = inputs[4:9], inputs[9]
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, *grad_outputs):
            # b is linear in g and in each operand. With a tangent t_i for output i = g_i, the sum
            # <t_i, b_i(g; x, W, M)> is <g, f(... t_i in place of operand i ...)>: that f is the
            # gradient of g, and b with t_i in place of operand i gives those of the other operands.
            grad, *operands = ctx.saved_tensors
            totals: list[Tensor | None] = [None] * 4
            for i, tangent in enumerate(grad_outputs):
                if tangent is None or not ctx.needs[i]:
                    continue
                varied = [*operands[:i], tangent, *operands[i + 1 :]]
                if ctx.needs_input_grad[0]:
                    totals[0] = _sum_optional(totals[0], Forward.apply(*varied, *ctx.geometry))
                needs = tuple(j != i and ctx.needs_input_grad[1 + j] for j in range(3))
                if any(needs):
                    parts = Backward.apply(grad, *varied, *ctx.geometry, needs)
                    for j, part in enumerate(_needed_gradients(needs, parts), start=1):
                        totals[j] = _sum_optional(totals[j], part)
            return *totals, None, None, None, None, None, None

    def function(*arguments):
        """Without gradients the operator itself, since an autograd function costs more."""
        apply = Forward.apply if torch.is_grad_enabled() else forward_op
        return apply(*arguments)

    return function


def _operands_of(x: Tensor, weight: Tensor, m: Tensor, *geometry: Any) -> Operands:
    """The operands of an operator's arguments."""
    *steps, groups = geometry
    window = Window(tuple(weight.shape[2:]), *map(tuple, steps))
    return Operands(x, weight, m, window, groups)


def _vmapped_examples(
    operands: Sequence[Tensor], dims: Sequence[int | None], size: int
) -> list[tuple[Tensor, ...]]:
    """The operands of every vmapped example."""
    together = [batch_first(t, dim, size) for t, dim in zip(operands, dims, strict=True)]
    return list(zip(*together, strict=True))


def _needed_gradients(needs: Sequence[bool], gradients: Sequence[Tensor]) -> list[Tensor | None]:
    return [g if need else None for need, g in zip(needs, gradients, strict=True)]


def _sum_optional(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return part if total is None else total
    return total + part

"""Derivatives of every order, batching rules, registration, and what is kept for backward."""

import pytest
import torch
from problems import KINDS, PROBLEMS, Problem, ids
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import grad, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from neural_similarity.functional import similarity_conv2d

everywhere = pytest.mark.parametrize("problem", PROBLEMS, ids=ids)
both_kinds = pytest.mark.parametrize("kind", KINDS)
TINY = [
    Problem("tiny", size=(3, 4), channels=(2, 2), batch=1),
    Problem("tiny-stride-groups", (2, 3), (2, 1), (1, 1), (1, 2), 2, (2, 4), (4, 5), 1),
]


def function(problem, backend="auto"):
    return lambda *operands: similarity_conv2d(*operands, None, *problem.geometry, backend=backend)


@everywhere
@both_kinds
def test_gradients_are_those_of_the_definition(problem, kind):
    operands = [t.requires_grad_() for t in (*problem.operands(), problem.similarity(kind))]
    y = function(problem)(*operands)
    outgoing = torch.randn_like(y)
    gradients = torch.autograd.grad(y, operands, outgoing)
    expected = torch.autograd.grad(function(problem, "reference")(*operands), operands, outgoing)
    assert_close(gradients, expected)


@pytest.mark.parametrize("problem", TINY, ids=ids)
@both_kinds
def test_first_and_second_derivatives_are_finite_differences(problem, kind):
    operands = [t.requires_grad_() for t in (*problem.operands(), problem.similarity(kind))]
    assert gradcheck(function(problem), operands, fast_mode=True)
    assert gradgradcheck(function(problem), operands, fast_mode=True)


@pytest.mark.parametrize("frozen", range(3), ids=["x", "weight", "similarity"])
@both_kinds
def test_only_needed_gradients_are_computed(frozen, kind):
    problem, asked = PROBLEMS[0], []
    operands = [*problem.operands(), problem.similarity(kind)]
    for i, operand in enumerate(operands):
        operand.requires_grad_(i != frozen)
    y = function(problem)(*operands).sum()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if "conv_backward" in str(operator):
                asked.append(args[-1])
            return operator(*args, **kwargs or {})

    with Watch():
        y.backward()
    assert asked == [[i != frozen for i in range(3)]]
    assert [operand.grad is None for operand in operands] == [i == frozen for i in range(3)]


@pytest.mark.parametrize("in_dims", [(0, None, 0), (0, 0, 0), (None, 0, None), (None, None, 1)])
@both_kinds
def test_vmap_of_grad_is_a_loop(in_dims, kind):
    problem, size = Problem("vmapped", stride=(2, 1)), 3
    operands = (*problem.operands(), problem.similarity(kind))
    pairs = zip(operands, in_dims, strict=True)
    stacked = [t if d is None else torch.stack([t, 2 * t, t + 1], d) for t, d in pairs]
    pairs = list(zip(stacked, in_dims, strict=True))
    examples = [[t if d is None else t.select(d, i) for t, d in pairs] for i in range(size)]

    def loss(*operands):
        return function(problem)(*operands).square().sum()

    gradients = grad(loss, (0, 1, 2))
    losses = torch.stack([loss(*example) for example in examples])
    assert_close(vmap(loss, in_dims)(*stacked), losses)
    looped = zip(*[gradients(*example) for example in examples], strict=True)
    assert_close(vmap(gradients, in_dims)(*stacked), tuple(map(torch.stack, looped)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("problem", [PROBLEMS[0], TINY[1]], ids=ids)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@both_kinds
def test_registration_is_complete(problem, layout, kind):
    x, weight = problem.operands(torch.float32)
    x, m = x.to(memory_format=layout), problem.similarity(kind, torch.float32).unsqueeze(1)
    forward = getattr(torch.ops.neural_similarity, f"{kind}_conv")
    backward = getattr(torch.ops.neural_similarity, f"{kind}_conv_backward")
    arguments = (x, weight, m, *problem.geometry, "auto")
    torch.library.opcheck(forward, arguments)
    outgoing = torch.randn_like(forward(*arguments))
    torch.library.opcheck(backward, (outgoing, *arguments, (True, True, True)))


@pytest.mark.parametrize(("kind", "limit"), [("diagonal", 45), ("full", 120)])
def test_backward_keeps_only_x_weight_and_m(kind, limit):
    problem = Problem("memory", channels=(32, 32), size=(32, 32))
    operands = [t.requires_grad_() for t in problem.operands(torch.float32)]
    m = problem.similarity(kind, torch.float32).requires_grad_()
    kept: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        function(problem)(*operands, m)
    addresses = {t.data_ptr() for t in (*operands, m)}
    assert {t.data_ptr() for t in kept} == addresses
    per_position = sum(t.numel() for t in kept if t.dim() > 3 and t is not operands[1])
    assert (per_position - operands[1].numel()) / (2 * 32 * 32) <= limit


@both_kinds
def test_flops_are_twice_the_multiplications(kind):
    problem = Problem("flops", groups=2)
    operands = [t.requires_grad_() for t in (*problem.operands(), problem.similarity(kind))]
    with FlopCounterMode(display=False) as counter:
        y = function(problem)(*operands)
    positions = 2 * 7 * 9
    mixing = 4 * 9 * (9 if kind == "full" else 1)
    assert counter.get_total_flops() == 2 * positions * (6 * 2 * 9 + mixing)
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert counter.get_total_flops() == 2 * positions * (2 * 6 * 2 * 9 + 3 * mixing)

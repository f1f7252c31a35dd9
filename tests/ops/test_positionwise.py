"""Products with one number per position, against their formulas in float64."""

from itertools import product

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from neural_similarity.ops.positionwise import dot, energy, scale

FORMATS = [torch.contiguous_format, torch.channels_last]


def operands(dtype=torch.float64, channels=5, memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    x, y, gate = (torch.randn(2, channels, 3, 4, dtype=dtype) for _ in range(3))
    d = torch.randn(2, 1, 3, 4, dtype=torch.promote_types(dtype, torch.float32))
    return [t.to(memory_format=memory_format) for t in (x, y, gate)], d


def doubled(*tensors):
    return [t.double() for t in tensors]


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("channels", [1, 5, 16, 50])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_formulas(dtype, channels, memory_format):
    (x, y, gate), d = operands(dtype, channels, memory_format)
    open_ = (gate > 0).double()
    a, b, factor = doubled(x, y, d)
    accumulated = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    assert_close(dot(x, y), (a * b).sum(1, keepdim=True), **accumulated)
    assert_close(dot(x, y, gate), (open_ * a * b).sum(1, keepdim=True), **accumulated)
    assert_close(energy(x), (a * a).sum(1, keepdim=True), **accumulated)
    z = scale(d, x, gate)
    assert z.dtype == dtype
    assert z.stride() == x.stride()
    assert_close(z, (open_ * factor * a).to(dtype))
    assert_close(scale(d, x), (factor * a).to(dtype))


def test_derivatives_of_both_orders():
    (x, y, gate), d = operands()
    inputs = [t.requires_grad_() for t in (x, y)]
    for check in (gradcheck, gradgradcheck):
        assert check(lambda x, y: dot(x, y, gate), inputs)
        assert check(energy, [x])
        assert check(lambda d, x: scale(d, x, gate), [d.requires_grad_(), x])


def test_a_gate_that_is_its_own_input_is_a_relu():
    (x, _, _), d = operands()
    d = d.abs()
    x.requires_grad_()
    ours = torch.autograd.grad(scale(d, x, x).square().sum(), x)
    assert_close(scale(d, x, x), torch.relu(d * x))
    assert_close(ours, torch.autograd.grad(torch.relu(d * x).square().sum(), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_not_a_number_passes(dtype):
    x, d = torch.full((1, 2, 1, 1), float("nan"), dtype=dtype), torch.ones(1, 1, 1, 1, dtype=dtype)
    assert scale(d, x, x).isnan().all()
    assert dot(x, x, x).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators_are_registered_well(dtype):
    (x, y, gate), d = operands(dtype)
    operators = torch.ops.neural_similarity
    torch.library.opcheck(operators.dot.default, (x, y, gate))
    torch.library.opcheck(operators.scale.default, (d, x, None))
    for here, there in product((torch.contiguous_format, torch.channels_last), repeat=2):
        mixed = x.to(memory_format=here), gate.to(memory_format=there)
        torch.library.opcheck(operators.scale.default, (d, *mixed))


def test_vmap_and_gradients_per_example():
    (x, y, gate), d = operands()
    many = torch.func.vmap(lambda x, d: scale(d[None], x[None], x[None])[0])(x, d)
    assert_close(many, scale(d, x, x))
    gradient = torch.func.grad(lambda x, y, g: dot(x[None], y[None], g[None]).square().sum())
    each = [gradient(*example) for example in zip(x, y, gate, strict=True)]
    assert_close(torch.func.vmap(gradient)(x, y, gate), torch.stack(each))


def test_empty_batch():
    x = torch.zeros(0, 3, 2, 2)
    assert dot(x, x).shape == (0, 1, 2, 2)
    assert scale(torch.zeros(0, 1, 2, 2), x).shape == x.shape

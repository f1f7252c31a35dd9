"""Mean and variance of channels, and their derivatives, against float64."""

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c

from neural_similarity.ops.moments import moments


def maps(dtype=torch.float32, memory_format=torch.channels_last):
    generator = torch.Generator().manual_seed(4)
    x = 10 + torch.randn(3, 18, 5, 7, generator=generator)
    return x.to(dtype).to(memory_format=memory_format).requires_grad_()


def expected(x):
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return mean, variance


@in_c
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(dtype, memory_format):
    x = maps(dtype, memory_format)
    right = in_float64([x])
    ours, theirs = moments(x), expected(*right)
    for one, other, near in zip(ours, theirs, (1e-7, 1e-6), strict=True):
        assert one.dtype == torch.float32
        assert error(one, other) < near
        grad = torch.rand(18, generator=torch.Generator().manual_seed(5))
        (found,) = gradients(one, [x], grad, retain_graph=True)
        (wanted,) = gradients(other, right, grad.double(), retain_graph=True)
        assert found.dtype == dtype
        assert error(found, wanted) < 10 * TOLERANCE[dtype]


@in_c
def test_derivatives_of_higher_order():
    x = maps()
    results = []
    for tensors, function in (([x], moments), (in_float64([x]), expected)):
        mean, variance = function(*tensors)
        value, orders = (mean * variance.square()).sum(), []
        for _ in range(3):
            (gradient,) = gradients(value, tensors, None, create_graph=True)
            value = (gradient * tensors[0].square()).sum()
            orders.append(gradient)
        results.append(orders)
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-4

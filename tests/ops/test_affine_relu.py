"""ReLU of an affine function of channels, pooled or not, in one operator, against float64."""

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.ops import native
from neural_similarity.ops.affine_relu import affine_relu

everywhere = pytest.mark.parametrize(
    ("with_d", "pool"), [(True, False), (False, False), (False, True)]
)


def operands(with_d, dtype=torch.float32, channels=5, memory_format=torch.channels_last):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, channels, 5, 7, generator=generator)
    d = torch.rand(4, 1, 5, 7, generator=generator) + 0.5
    line = torch.randn(2, channels, generator=generator)
    x = x.to(dtype).to(memory_format=memory_format)
    return [d.requires_grad_() if with_d else None, x.requires_grad_(), line.requires_grad_()]


def expected(d, x, line, pool):
    t = (x if d is None else d * x) * line[0].view(-1, 1, 1) + line[1].view(-1, 1, 1)
    return F.relu(F.max_pool2d(t, 2) if pool else t)


@in_c
@everywhere
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 16, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradients(with_d, pool, dtype, channels, memory_format):
    ours = operands(with_d, dtype, channels, memory_format)
    right = in_float64(ours)
    z, z64 = affine_relu(*ours, pool), expected(*right, pool)
    assert (z.dtype, z.shape) == (dtype, z64.shape)
    if pool:
        assert z.is_contiguous(memory_format=torch.channels_last)
    else:
        assert z.stride() == ours[1].stride()
    grad = torch.rand_like(z)
    found, wanted = gradients(z, ours, grad), gradients(z64, right, grad.double())
    for one, other in zip((z, *found), (z64, *wanted), strict=True):
        assert error(one, other) < TOLERANCE[dtype]
    with torch.no_grad():
        assert torch.equal(affine_relu(*ours, pool), z)


@in_c
@everywhere
def test_derivatives_of_second_order(with_d, pool):
    ours = operands(with_d)
    results = []
    for tensors, function in ((ours, affine_relu), (in_float64(ours), expected)):
        z = function(*tensors, pool)
        first = gradients(z, tensors, torch.ones_like(z) * z, create_graph=True)
        second = sum(g.square().sum() for g in first)
        results.append(gradients(second, tensors, None))
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


@in_c
def test_derivatives_of_third_order_where_windows_are_pooled():
    ours = operands(with_d=False)
    results = []
    for tensors, function in ((ours, affine_relu), (in_float64(ours), expected)):
        z = function(*tensors, True)
        value, orders = z.square().sum(), []
        for _ in range(3):
            found = gradients(value, tensors, None, create_graph=True)
            value = sum((g * t).square().sum() for g, t in zip(found, tensors[1:], strict=True))
            orders += found
        results.append(orders)
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


@in_c
@everywhere
def test_parts_without_gradients(with_d, pool):
    d, x, line = operands(with_d)
    whole = torch.autograd.grad(affine_relu(d, x, line, pool).sum(), x)
    parts = None if d is None else d.detach(), x, line.detach()
    for create_graph in (True, False):
        z = affine_relu(*parts, pool).sum()
        (found,) = torch.autograd.grad(z, x, create_graph=create_graph)
        torch.testing.assert_close(found, *whole)


@in_c
@everywhere
def test_operators_are_registered_well(with_d, pool):
    d, x, line = (None if t is None else t.detach() for t in operands(with_d))
    registered = torch.ops.neural_similarity
    torch.library.opcheck(registered.affine_relu.default, (d, x, line, pool))
    z = affine_relu(d, x, line, pool)
    for needs_line in (True, False):
        arguments = z, d, x, line, pool, needs_line
        torch.library.opcheck(registered.affine_relu_backward.default, arguments)


@in_c
def test_what_windows_chose_and_its_transpose():
    _, x, line = (None if t is None else t.detach() for t in operands(with_d=False))
    maps, pooled = torch.randn_like(x), torch.rand(4, 5, 2, 3)
    found, spread = native.chosen(maps, x, line), native.scattered(pooled, x, line)
    z = affine_relu(None, x, line, True)
    assert torch.equal(found != 0, z > 0)
    assert_close((found * pooled).sum(), (maps * spread).sum())
    own = native.chosen(x, x, line) * line[0].view(-1, 1, 1) + line[1].view(-1, 1, 1)
    assert_close(own.masked_fill(z == 0, 0), z)


@in_c
def test_batches_of_second_derivatives():
    """As of a Hessian whose rows are computed at once."""
    _, x, line = (None if t is None else t.detach() for t in operands(with_d=False))

    def loss(line):
        return affine_relu(None, x, line, True).square().sum()

    one, other = (torch.autograd.functional.hessian(loss, line, vectorize=v) for v in (True, False))
    assert_close(one, other)
    assert one.abs().max() > 1

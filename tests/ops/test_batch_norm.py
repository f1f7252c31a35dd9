"""Statistics of channels, and pooled ReLU by them, with their derivatives, against float64."""

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.ops import native
from neural_similarity.ops.batch_norm import channel_moments, normalizing_line, pooled_relu

FORMATS = [torch.contiguous_format, torch.channels_last]
in_every_format = pytest.mark.parametrize("memory_format", FORMATS)


def maps(dtype=torch.float32, memory_format=torch.channels_last):
    generator = torch.Generator().manual_seed(4)
    x = 10 + torch.randn(3, 18, 5, 7, generator=generator)
    return x.to(dtype).to(memory_format=memory_format).requires_grad_()


def expected_moments(x):
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return mean, variance


@in_c
@in_every_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_and_their_gradients(dtype, memory_format):
    x = maps(dtype, memory_format)
    right = in_float64([x])
    ours, theirs = channel_moments(x), expected_moments(*right)
    for one, other, near in zip(ours, theirs, (1e-7, 1e-6), strict=True):
        assert one.dtype == torch.float32
        assert error(one, other) < near
        grad = torch.rand(18, generator=torch.Generator().manual_seed(5))
        (found,) = gradients(one, [x], grad, retain_graph=True)
        (wanted,) = gradients(other, right, grad.double(), retain_graph=True)
        assert found.dtype == dtype
        assert error(found, wanted) < 10 * TOLERANCE[dtype]


@in_c
def test_derivatives_of_higher_order_of_moments():
    x = maps()
    results = []
    for tensors, function in (([x], channel_moments), (in_float64([x]), expected_moments)):
        mean, variance = function(*tensors)
        value, orders = (mean * variance.square()).sum(), []
        for _ in range(3):
            (gradient,) = gradients(value, tensors, None, create_graph=True)
            value = (gradient * tensors[0].square()).sum()
            orders.append(gradient)
        results.append(orders)
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-4


@in_c
def test_a_mean_far_from_zero_leaves_the_variance_exact():
    x = maps().detach() + 3e4
    exact = x.double().var((0, 2, 3), correction=0)
    assert_close(channel_moments(x)[1].double(), exact, rtol=1e-5, atol=0)


@in_c
def test_a_line_by_moments_is_batch_normalisation():
    x = maps()
    weight, bias = torch.randn(2, 18)
    slope, offset = normalizing_line(weight, bias, *channel_moments(x), 1e-3).view(2, 18, 1, 1)
    right = F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)
    assert_close(slope * x + offset, right, rtol=1e-4, atol=1e-4)


def operands(dtype=torch.float32, channels=5, memory_format=torch.channels_last, size=(5, 7)):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, channels, *size, generator=generator)
    line = torch.randn(2, channels, generator=generator)
    x = x.to(dtype).to(memory_format=memory_format)
    return [x.requires_grad_(), line.requires_grad_()]


def expected(x, line):
    t = x * line[0].view(-1, 1, 1) + line[1].view(-1, 1, 1)
    return F.relu(F.max_pool2d(t, 2))


@in_c
@in_every_format
@pytest.mark.parametrize("size", [(2, 2), (5, 7), (6, 5), (3, 4), (2, 140)])
@pytest.mark.parametrize("channels", [1, 16, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradients(dtype, channels, size, memory_format):
    ours = operands(dtype, channels, memory_format, size)
    right = in_float64(ours)
    z, z64 = pooled_relu(*ours), expected(*right)
    assert (z.dtype, z.shape) == (dtype, z64.shape)
    assert z.is_contiguous(memory_format=torch.channels_last)
    grad = torch.rand_like(z)
    found, wanted = gradients(z, ours, grad), gradients(z64, right, grad.double())
    for one, other in zip((z, *found), (z64, *wanted), strict=True):
        assert error(one, other) < TOLERANCE[dtype]
    with torch.no_grad():
        assert torch.equal(pooled_relu(*ours), z)


@in_c
def test_of_equal_numbers_in_a_window_the_first_has_the_gradient_as_in_torch():
    x = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [3.0, 3.0, 0.0], [3.0, 3.0, 0.0]])
    ours = x.view(1, 1, 4, 3).requires_grad_(), torch.ones(2, 1).requires_grad_()
    right = in_float64(ours)
    grad = torch.tensor([1.0, -2.0]).view(1, 1, 2, 1)
    found = gradients(pooled_relu(*ours), ours, grad)
    wanted = gradients(expected(*right), right, grad.double())
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@in_c
def test_threads_share_out_the_positions():
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            ours = operands(channels=20)
            z = pooled_relu(*ours)
            results.append((z, *gradients(z, ours, z.detach()), *channel_moments(ours[0])))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        assert error(two, one.double()) < 1e-6


@in_c
def test_derivatives_to_third_order():
    ours = operands()
    results = []
    for tensors, function in ((ours, pooled_relu), (in_float64(ours), expected)):
        z = function(*tensors)
        value, orders = z.square().sum(), []
        for _ in range(3):
            found = gradients(value, tensors, None, create_graph=True)
            value = sum((g * t).square().sum() for g, t in zip(found, tensors, strict=True))
            orders += found
        results.append(orders)
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


@in_c
def test_a_layer_that_is_called_twice_has_one_gradient():
    """Also where it is to be differentiated again: its line is in its input's history."""
    leaves = x, line = operands(size=(8, 8))
    loss = pooled_relu(pooled_relu(x, line), line).square().sum()
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    for ours, theirs in zip(gradients(loss, leaves, None, create_graph=True), plain, strict=True):
        assert error(ours, theirs.double()) < 1e-5


@in_c
def test_parts_without_gradients():
    x, line = operands()
    whole = torch.autograd.grad(pooled_relu(x, line).sum(), x)
    for create_graph in (True, False):
        z = pooled_relu(x, line.detach()).sum()
        (found,) = torch.autograd.grad(z, x, create_graph=create_graph)
        assert_close(found, *whole)


@in_c
def test_not_a_number_passes():
    x, line = (t.detach() for t in operands())
    x[0, 2] = float("nan")
    z = pooled_relu(x, line)
    assert z[0, 2].isnan().all()
    assert z[1:].isfinite().all()


@in_c
def test_operators_are_registered_well():
    x, line = (t.detach() for t in operands())
    registered = torch.ops.neural_similarity
    torch.library.opcheck(registered.pool_relu.default, (x, line))
    torch.library.opcheck(registered.pool_chosen.default, (x, x, line))
    torch.library.opcheck(registered.pool_scattered.default, (pooled_relu(x, line), x, line))


@in_c
def test_what_windows_chose_and_its_transpose():
    x, line = (t.detach() for t in operands())
    others, pooled = torch.randn_like(x), torch.rand(4, 5, 2, 3)
    found = native.pool_chosen(others, x, line)
    spread = native.pool_scattered(pooled, x, line)
    assert_close((found * pooled).sum(), (others * spread).sum())
    own = native.pool_chosen(x, x, line) * line[0].view(-1, 1, 1) + line[1].view(-1, 1, 1)
    assert_close(F.relu(own), pooled_relu(x, line))


@in_c
def test_batches_of_second_derivatives():
    """As of a Hessian whose rows are computed at once."""
    x, line = (t.detach() for t in operands())

    def loss(line):
        return pooled_relu(x, line).square().sum()

    one, other = (torch.autograd.functional.hessian(loss, line, vectorize=v) for v in (True, False))
    assert_close(one, other)
    assert one.abs().max() > 1

"""Predictions times gains, plus what M starts from, in one operator, against float64."""

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c

from neural_similarity.ops.gained import gained


def operands(dtype=torch.float32, channels=5, memory_format=torch.channels_last):
    generator = torch.Generator().manual_seed(3)
    raw = torch.randn(3, channels, 9, 8, generator=generator)
    gain, start = torch.randn(2, channels, generator=generator)
    raw = raw.to(dtype).to(memory_format=memory_format)
    return [raw.requires_grad_(), gain.requires_grad_()], start


def expected(raw, gain, start):
    return raw * gain.view(-1, 1, 1) + start.to(gain.dtype).view(-1, 1, 1)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 9, 16, 81])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradients(dtype, channels, memory_format):
    ours, start = operands(dtype, channels, memory_format)
    right = in_float64(ours)
    m, m64 = gained(*ours, start), expected(*right, start)
    assert m.dtype == torch.float32
    assert m.stride() == ours[0].stride()
    assert error(m, m64) < TOLERANCE[torch.float32]
    grad = torch.rand_like(m)
    found, wanted = gradients(m, ours, grad), gradients(m64, right, grad.double())
    assert error(found[0], wanted[0]) < TOLERANCE[dtype]
    assert error(found[1], wanted[1]) < TOLERANCE[torch.float32]
    with torch.no_grad():
        assert torch.equal(gained(*ours, start), m)


def test_float64_stays():
    ours, start = operands(torch.float64)
    right = in_float64(ours)
    torch.testing.assert_close(gained(*ours, start), expected(*right, start), rtol=1e-14, atol=0)


def test_derivatives_of_second_order():
    ours, start = operands()
    results = []
    for tensors, function in ((ours, gained), (in_float64(ours), expected)):
        m = function(*tensors, start)
        first = gradients(m, tensors, torch.ones_like(m) * m, create_graph=True)
        results.append(gradients(sum(g.square().sum() for g in first), tensors, None))
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


def test_under_a_transform():
    ours, start = operands()
    raw, gain = (t.detach() for t in ours)
    gains = torch.stack((gain, 2 * gain))
    both = torch.func.vmap(gained, in_dims=(None, 0, None))(raw, gains, start)
    torch.testing.assert_close(both, torch.stack([gained(raw, g, start) for g in gains]))


@in_c
def test_operators_are_registered_well():
    (raw, gain), start = operands()
    raw, gain = raw.detach(), gain.detach()
    registered = torch.ops.neural_similarity
    torch.library.opcheck(registered.gained.default, (raw, gain, start))
    m = gained(raw, gain, start)
    torch.library.opcheck(registered.gained_backward.default, (m, raw, gain))

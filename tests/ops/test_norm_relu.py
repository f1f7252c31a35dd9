"""ReLU of batch-normalised maps, pooled or not, in one operator, against torch in float64."""

import copy

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.nn import normalization
from neural_similarity.nn.normalization import rectifier
from neural_similarity.ops.affine_relu import affine_relu
from neural_similarity.ops.native import available
from neural_similarity.ops.norm_relu import norm_relu
from neural_similarity.ops.positionwise import scaled

EPS = 1e-3


def operands(
    dtype=torch.float32,
    channels=5,
    memory_format=torch.channels_last,
    shift=1.0,
    size=(5, 7),
    with_d=True,
):
    generator = torch.Generator().manual_seed(3)
    x = 3 * torch.randn(4, channels, *size, generator=generator) + shift
    d = torch.rand(4, 1, *size, generator=generator) + 0.5
    weight, bias = (
        torch.randn(channels, generator=generator),
        torch.rand(channels, generator=generator),
    )
    x = x.to(dtype).to(memory_format=memory_format)
    d = d.requires_grad_() if with_d else None
    return [d, *(t.requires_grad_() for t in (x, weight, bias))]


def expected(d, x, weight, bias, pool=False):
    t = F.batch_norm(x if d is None else d * x, None, None, weight, bias, True, 0.0, EPS)
    return F.relu(F.max_pool2d(t, 2) if pool else t)


@in_c
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 5, 16, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_d", [True, False])
def test_value_and_gradients(with_d, dtype, channels, memory_format):
    ours = operands(dtype, channels, memory_format, with_d=with_d)
    right = in_float64(ours)
    z, mean, variance = norm_relu(*ours, EPS)
    assert z.dtype == dtype
    assert z.stride() == ours[1].stride()
    grad = torch.randn_like(z)
    found = z, *gradients(z, ours, grad)
    z64 = expected(*right)
    for one, other in zip(found, (z64, *gradients(z64, right, grad.double())), strict=True):
        assert error(one, other) < TOLERANCE[dtype]
    t = right[1] if right[0] is None else right[0] * right[1]
    assert_close(mean.double(), t.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    assert_close(variance.double(), t.var((0, 2, 3), correction=0), rtol=1e-5, atol=1e-5)


@in_c
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(2, 2), (5, 7), (6, 5), (3, 4), (2, 140)])
@pytest.mark.parametrize("channels", [1, 16, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooled_value_and_gradients(dtype, channels, size, memory_format):
    ours = operands(dtype, channels, memory_format, size=size, with_d=False)
    right = in_float64(ours)
    z, mean, variance = norm_relu(*ours, EPS, pool=True)
    z64 = expected(*right, pool=True)
    assert (z.dtype, z.shape) == (dtype, z64.shape)
    assert z.is_contiguous(memory_format=torch.channels_last)
    grad = torch.rand_like(z)
    found = z, *gradients(z, ours, grad)
    for one, other in zip(found, (z64, *gradients(z64, right, grad.double())), strict=True):
        assert error(one, other) < TOLERANCE[dtype]
    unpooled = norm_relu(*ours, EPS)
    assert_close((mean, variance), unpooled[1:], rtol=0, atol=0)


@in_c
def test_of_equal_numbers_in_a_window_the_first_has_the_gradient_as_in_torch():
    x = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [3.0, 3.0, 0.0], [3.0, 3.0, 0.0]])
    x = x.view(1, 1, 4, 3).requires_grad_()
    ours = None, x, torch.ones(1).requires_grad_(), torch.ones(1).requires_grad_()
    right = in_float64(ours)
    grad = torch.tensor([1.0, -2.0]).view(1, 1, 2, 1)
    found = gradients(norm_relu(*ours, EPS, pool=True)[0], ours, grad)
    wanted = gradients(expected(*right, pool=True), right, grad.double())
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@in_c
def test_a_mean_far_from_zero_leaves_the_variance_exact():
    _, x, weight, bias = operands(shift=3e4)
    variance = norm_relu(None, x, weight, bias, EPS)[2]
    assert_close(variance.double(), x.double().var((0, 2, 3), correction=0), rtol=1e-5, atol=0)


@in_c
@pytest.mark.parametrize("pool", [True, False])
def test_threads_share_out_the_positions(pool):
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            ours = operands(channels=20, with_d=not pool)
            z = norm_relu(*ours, EPS, pool)[0]
            results.append((z, *gradients(z, ours, torch.ones_like(z) * z.detach())))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        assert error(two, one.double()) < 1e-6


@in_c
@pytest.mark.parametrize("pool", [True, False])
def test_derivatives_of_second_order(pool):
    ours = operands(with_d=not pool)
    results = []
    for tensors, function in (
        (ours, lambda *t: norm_relu(*t, EPS, pool)[0]),
        (in_float64(ours), lambda *t: expected(*t, pool)),
    ):
        z = function(*tensors)
        first = gradients(z, tensors, torch.ones_like(z) * z, create_graph=True)
        second = sum(g.square().sum() for g in first)
        results.append(gradients(second, tensors, None))
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


@in_c
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_is_called_twice_has_one_gradient(pool, training):
    """Also where it is to be differentiated again: its parameters are in its input's history."""
    _, x, weight, bias = operands(size=(8, 8))

    def once(x):
        if training:
            return norm_relu(None, x, weight, bias, EPS, pool)[0]
        return affine_relu(None, x, torch.stack((weight, bias)), pool)

    loss = once(once(x)).square().sum()
    leaves = (x, weight, bias)
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    for ours, theirs in zip(gradients(loss, leaves, None, create_graph=True), plain, strict=True):
        assert error(ours, theirs.double()) < 1e-5


@in_c
def test_parts_without_gradients():
    d, x, weight, bias = operands()
    d, bias = d.detach(), bias.detach()
    z = norm_relu(d, x, weight, bias, EPS)[0]
    for create_graph in (True, False):
        found = torch.autograd.grad(z.sum(), (x, weight), create_graph=create_graph)
        assert all(g.isfinite().all() for g in found)


@in_c
@pytest.mark.parametrize("pool", [True, False])
def test_not_a_number_passes(pool):
    _, x, weight, bias = operands()
    with torch.no_grad():
        x[0, 2] = float("nan")
        z = norm_relu(None, x, weight, bias, EPS, pool)[0]
    assert z[:, 2].isnan().all()
    assert z[:, :2].isfinite().all()


@in_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_are_registered_well(dtype):
    d, x, weight, bias = (t.detach() for t in operands(dtype))
    registered = torch.ops.neural_similarity
    for factor, pool in ((d, False), (None, False), (None, True)):
        arguments = factor, x, weight, bias, EPS, pool
        torch.library.opcheck(registered.norm_relu.default, arguments)
        z, *moments = norm_relu(*arguments)
        arguments = z, factor, x, weight, bias, *moments, EPS, pool
        torch.library.opcheck(registered.norm_relu_backward.default, arguments)


def layer(**options):
    torch.manual_seed(1)
    predictor = ns.SphereNet(hidden=6, batch_norm=True, **options)
    made = ns.Conv2d(3, 4, 3, padding=1, similarity=ns.Dynamic(ns.Diagonal(), predictor=predictor))
    nn.init.ones_(made.similarity.gain)
    return made


def calls(monkeypatch):
    """How often the fused operator runs from here on."""
    count = []

    def counted(*args):
        count.append(args)
        return norm_relu(*args)

    monkeypatch.setattr(normalization, "norm_relu", counted)
    return count


@in_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_trains_as_by_torchs_operations(monkeypatch, dtype):
    fused, plain = layer(), layer()
    x = torch.randn(4, 3, 6, 5)
    count = calls(monkeypatch)
    outputs = []
    for network, allowed in ((fused, available), (plain, lambda *_: False)):
        monkeypatch.setattr(normalization, "available", allowed)
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            for _ in range(2):
                y = network(x)
        y.float().square().sum().backward()
        outputs.append(y.float())
    assert len(count) == 2
    near = 1e-4 if dtype == torch.float32 else 0.1
    assert_close(*outputs, rtol=near, atol=near)
    assert_close(fused.state_dict(), plain.state_dict(), rtol=near, atol=near)
    assert dict(fused.named_buffers())["similarity.predictor.norm1.num_batches_tracked"] == 2
    for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
        assert error(one.grad, other.grad.double()) < near


def norms(change):
    norm = nn.BatchNorm2d(5)
    change(norm)
    return norm


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: norm.register_forward_hook(lambda *_: None),
        lambda norm: norm.register_forward_pre_hook(lambda *_: None),
        lambda norm: norm.register_full_backward_hook(lambda *_: None),
        lambda norm: setattr(norm, "momentum", None),
        lambda norm: setattr(norm, "track_running_stats", False),
        lambda norm: setattr(norm, "num_batches_tracked", None),
        lambda norm: setattr(norm, "__class__", type("Mine", (nn.BatchNorm2d,), {})),
        lambda norm: norm.double(),
        lambda norm: norm.bfloat16(),
    ],
)
def test_any_other_normalisation_runs_itself(monkeypatch, change):
    count = calls(monkeypatch)
    d, x, *_ = operands()
    norm = norms(change)
    d, x = d.to(torch.promote_types(norm.weight.dtype, torch.float32)), x.to(norm.weight.dtype)
    again = copy.deepcopy(norm)
    assert_close(rectifier(norm)(d, x), F.relu(again(scaled(d, x))))
    assert_close(norm.state_dict(), again.state_dict())
    assert not count


def test_hooks_of_all_modules_see_the_normalisation(monkeypatch):
    count = calls(monkeypatch)
    d, x, *_ = operands()
    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda norm, *_: seen.append(norm))
    try:
        rectifier(norm := norms(lambda _: None))(d, x)
    finally:
        hook.remove()
    assert seen == [norm]
    assert not count


def test_normalisation_of_another_kind_runs():
    d, x, *_ = operands()
    norm = nn.GroupNorm(5, 5)
    nn.init.constant_(norm.weight, 3)
    assert_close(rectifier(norm)(d, x), F.relu(norm(scaled(d, x))))


def test_without_gains_or_running_statistics_torch_normalises():
    d, x, *_ = operands()
    for norm in (nn.BatchNorm2d(5, affine=False), nn.BatchNorm2d(5, track_running_stats=False)):
        assert_close(rectifier(norm)(d, x), F.relu(norm(scaled(d, x))))


def test_one_position_is_refused_as_torch_does():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        rectifier(nn.BatchNorm2d(5))(None, torch.zeros(1, 5, 1, 1))


def test_transforms_take_torchs_operations():
    network = layer()
    x = torch.randn(4, 3, 6, 5)
    weights = {name: p.detach() for name, p in network.named_parameters()}
    buffers = {name: b.clone() for name, b in network.named_buffers()}

    def loss(weights):
        state = weights | {name: b.clone() for name, b in buffers.items()}
        return torch.func.functional_call(network, state, x).square().sum()

    network(x).square().sum().backward()
    for name, found in torch.func.grad(loss)(weights).items():
        assert_close(found, network.get_parameter(name).grad, rtol=1e-3, atol=1e-4)

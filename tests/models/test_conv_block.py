"""A block is torch's layers, and one operator behind its convolution by explicit statistics."""

import copy
import sys

import pytest
import torch
from against_float64 import error
from compiler import in_c
from torch import nn
from torch.testing import assert_close

from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics, support_first
from neural_similarity.models import convnet4
from neural_similarity.models.blocks import conv_block, has_pool, without_pool
from neural_similarity.ops.batch_norm import pooled_relu


def images(size=(7, 6), channels=3):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, channels, *size, generator=generator)
    return x.to(memory_format=torch.channels_last)


def made(pool=True):
    torch.manual_seed(0)
    block = conv_block(nn.Conv2d(3, 20, 3, padding=1, bias=False), pool=pool)
    nn.init.uniform_(block[1].weight, -1, 1)
    nn.init.normal_(block[1].bias)
    return block.to(memory_format=torch.channels_last)


def by_torch(block):
    """The same layers in a sequence of torch's."""
    return nn.Sequential(*copy.deepcopy(block))


@pytest.fixture
def calls(monkeypatch):
    """The uses of the operator."""
    found = []

    def counted(*args):
        found.append(args)
        return pooled_relu(*args)

    monkeypatch.setattr(sys.modules[conv_block.__module__], "pooled_relu", counted)
    return found


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_computes_and_trains_as_torchs_layers(calls, training, pool):
    block = made(pool).train(training)
    other = by_torch(block)
    for network in (block, other):
        network(images())
        network(images().requires_grad_()).square().sum().backward()
    assert not calls
    assert_close(block.state_dict(), other.state_dict(), rtol=0, atol=0)
    for one, two in zip(block.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad, rtol=0, atol=0)


@in_c
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("statistics", ["running", "support", "transductive"])
def test_explicit_statistics_are_one_operator_with_second_derivatives(calls, statistics, pool):
    """As a step of MAML needs them; in float64 the layers run one by one."""
    block = made(pool)
    block[1].running_mean.uniform_(-1, 1)
    block[1].running_var.uniform_(0.5, 2)
    set_statistics(block, statistics)
    results = []
    for network, x in ((block, images()), (copy.deepcopy(block).double(), images().double())):
        parameters = list(network.parameters())
        with support_first(3):
            y = network(x.requires_grad_())
            first = torch.autograd.grad(y.square().sum(), [x, *parameters], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, *parameters])
        results.append([y, *first, *second])
    assert len(calls) == pool
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


CHANGES = {
    "a hook on the pool": lambda block: block[2].register_forward_hook(lambda *_: None),
    "a hook on the ReLU": lambda block: block[3].register_forward_pre_hook(lambda *_: None),
    "another activation": lambda block: block.set_submodule("3", nn.Softplus()),
    "another pool": lambda block: block.set_submodule("2", nn.AvgPool2d(2)),
    "another window": lambda block: block.set_submodule("2", nn.MaxPool2d(2, stride=1)),
    "a padded window": lambda block: block.set_submodule("2", nn.MaxPool2d(2, padding=1)),
    "rounded up": lambda block: block.set_submodule("2", nn.MaxPool2d(2, ceil_mode=True)),
    "no activation": lambda block: block.__delitem__(3),
    "another convolution": lambda block: block.set_submodule("0", nn.Identity()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_block_runs_its_layers(calls, name):
    block = made()
    if name == "another convolution":
        block[1] = nn.BatchNorm2d(3)
    set_statistics(block, "transductive")
    CHANGES[name](block)
    other = by_torch(block)
    x = images().contiguous() if name == "another convolution" else images()
    assert_close(block(x), other(x), rtol=0, atol=0)
    assert_close(block.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert not calls


@pytest.mark.parametrize("statistics", [None, "transductive"])
def test_what_torch_refuses_is_refused(statistics):
    block = set_statistics(made(), statistics)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        block(images((1, 6)))
    block.set_submodule("1", set_statistics(nn.BatchNorm2d(19), statistics))
    with pytest.raises(RuntimeError, match="should contain 20 elements not 19"):
        block(images())


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("statistics", ["running", "transductive"])
def test_transforms_and_tracing_take_torchs_layers(calls, statistics):
    block = set_statistics(made(), statistics)
    x, state = images(), {name: p.detach() for name, p in block.named_parameters()}

    def loss(state):
        return torch.func.functional_call(block, state, x).square().sum()

    found = torch.func.grad(loss)(state)
    other = by_torch(block)
    other(x).square().sum().backward()
    for name, gradient in found.items():
        assert_close(gradient, other.get_parameter(name).grad, rtol=1e-4, atol=1e-4)
    assert {node.op for node in torch.fx.symbolic_trace(made()).graph.nodes} >= {"call_module"}
    set_statistics(block, "running")
    traced = torch.jit.trace(block, x, check_trace=False)
    assert not calls
    assert_close(traced(x), by_torch(block)(x))


def test_slices_and_a_block_without_its_pool():
    block = made()
    assert has_pool(block)
    assert not has_pool(made(pool=False))
    assert [type(layer) for layer in block[:2]] == [nn.Conv2d, nn.BatchNorm2d]
    alone = without_pool(block)
    assert not has_pool(alone)
    assert_close(alone(images()), made(pool=False)(images()))
    assert alone[0] is block[0]


@in_c
def test_a_network_of_blocks_normalises_in_the_operator(calls):
    network = convnet4(5, image_size=32, width=0.5).to(memory_format=torch.channels_last)
    set_statistics(network, "transductive")(images((32, 32))).sum().backward()
    assert len(calls) == 4

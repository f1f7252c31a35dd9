"""A block is torch's layers, with its ReLU behind its pool."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from neural_similarity.models.building import conv_block, has_pool, without_pool

SIZE = (4, 3, 7, 6)


def made(pool=True):
    torch.manual_seed(0)
    block = conv_block(nn.Conv2d(3, 20, 3, padding=1, bias=False), pool=pool)
    nn.init.uniform_(block[1].weight, -1, 1)
    nn.init.normal_(block[1].bias)
    return block


@pytest.mark.parametrize("training", [True, False])
def test_its_output_and_gradients_are_those_of_a_pool_behind_the_relu(training):
    block = made().train(training)
    conv, norm, pool, relu = copy.deepcopy(block)
    other, x = nn.Sequential(conv, norm, relu, pool), torch.randn(SIZE)
    ours, theirs = block(x), other(x)
    assert_close(ours, theirs, rtol=0, atol=0)
    for y in (ours, theirs):
        y.square().sum().backward()
    for one, two in zip(block.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad)


def test_slices_and_a_block_without_its_pool():
    block, x = made(), torch.randn(SIZE)
    assert has_pool(block)
    assert not has_pool(made(pool=False))
    assert [type(layer) for layer in block[:2]] == [nn.Conv2d, nn.BatchNorm2d]
    alone = without_pool(block)
    assert not has_pool(alone)
    assert_close(alone(x), made(pool=False)(x))
    assert alone[0] is block[0]

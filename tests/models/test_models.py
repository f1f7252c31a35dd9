"""CNN-9, the block of plain networks, and errors; `test_laws.py` has what holds for each."""

import copy

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.models.building import conv_block, has_pool, without_pool


def convolutions(model):
    return [m for m in model.modules() if isinstance(m, ns.Conv2d)]


def test_the_released_variant_has_a_plain_root_and_a_convolution_to_the_classes():
    model = models.cnn9(7, similarity="static-full", variant="released")
    assert type(model.root[0]) is nn.Conv2d
    assert [layer.out_channels for layer in convolutions(model)] == [32] * 3 + [64] * 3 + [128] * 3
    assert model.classifier.weight.shape == (7, 128, 4, 4)
    assert not [m for m in model.modules() if isinstance(m, nn.Linear)]


def test_a_ready_predictor_serves_no_network():
    ready = torch.nn.Conv2d(3, 9, 3, padding=1)
    with pytest.raises(ValueError, match="must make a module for each layer, got one module for 9"):
        models.cnn9(5, similarity=ns.Dynamic(ns.Diagonal(), predictor=ready))


@pytest.mark.parametrize(
    ("name", "options", "multiple"),
    [
        ("cnn9", {"variant": "paper"}, 8),
        ("cnn9", {"variant": "released"}, 8),
        ("cnn10", {}, 32),
        ("cnn10_plus", {}, 32),
    ],
)
@pytest.mark.parametrize("size", [20, 28, 30, 32, 70, 84])
def test_image_sizes_are_padded_to_a_multiple(size, name, options, multiple):
    options = {"in_channels": 1, "image_size": size, "width": 0.1} | options
    model = models.build(name, 5, **options).eval()
    x = torch.ones(1, 1, size, size)
    assert model(x).shape == (1, 5)
    padded = model.pad(x) if size % multiple else x
    assert padded.shape[-1] % multiple == 0
    assert padded.sum() == size**2


@pytest.mark.parametrize("name", models.MODELS)
def test_every_network_refuses_sizes_of_nothing(name):
    """Each with the least image size of its own, and networks that take no similarity."""
    least = 16 if name in ("convnet4", "resnet12") else 1
    for option, lowest in (("num_classes", 1), ("in_channels", 1), ("image_size", least)):
        wanted = f"`{option}` must be at least {lowest}, got {lowest - 1}"
        with pytest.raises(ValueError, match=wanted):
            models.build(name, **{"num_classes": 10, option: lowest - 1})
    for width in (0, -1, [1]):
        with pytest.raises(ValueError, match=r"`width` must be positive, got"):
            models.build(name, 10, width=width)


test_errors = refusals(
    ({"num_classes": {}}, "`num_classes` must be at least 1, got {}"),
    ({"variant": "tf"}, "`variant` must be one of paper, released, got 'tf'"),
    ({"name": "cnn8"}, "`name` must be one of cnn9, .*, got 'cnn8'; nearest: cnn9"),
    ({"depth": 3}, "`depth` is not an option of cnn9, which has in_channels, image_size, "),
    ({"name": "cnn10", "variant": "paper"}, "`variant` is not an option of cnn10, which has "),
    ({"name": "spherenet9", "similarity": "static-full"}, "`similarity` must be None in a Sph"),
    ({"name": "spherenet9", "variant": "tf"}, "`variant` must be one of paper, released, got"),
    call=lambda options: models.build(**{"name": "cnn9", "num_classes": 10, **options}),
)


@pytest.mark.parametrize("ask", [models.options, models.usual_sizes])
def test_unknown_networks_have_no_options(ask):
    with pytest.raises(ValueError, match=r"`name` must be one of cnn9, .*, got 'cnn'"):
        ask("cnn")


BLOCK_SIZE = (4, 3, 7, 6)


def made_block(pool=True):
    torch.manual_seed(0)
    block = conv_block(nn.Conv2d(3, 20, 3, padding=1, bias=False), pool=pool)
    nn.init.uniform_(block[1].weight, -1, 1)
    nn.init.normal_(block[1].bias)
    return block


@pytest.mark.parametrize("training", [True, False])
def test_a_blocks_output_and_gradients_are_those_of_a_pool_behind_the_relu(training):
    block = made_block().train(training)
    conv, norm, pool, relu = copy.deepcopy(block)
    other, x = nn.Sequential(conv, norm, relu, pool), torch.randn(BLOCK_SIZE)
    ours, theirs = block(x), other(x)
    assert_close(ours, theirs, rtol=0, atol=0)
    for y in (ours, theirs):
        y.square().sum().backward()
    for one, two in zip(block.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad)


def test_slices_and_a_block_without_its_pool():
    block, x = made_block(), torch.randn(BLOCK_SIZE)
    assert has_pool(block)
    assert not has_pool(made_block(pool=False))
    assert [type(layer) for layer in block[:2]] == [nn.Conv2d, nn.BatchNorm2d]
    alone = without_pool(block)
    assert not has_pool(alone)
    assert_close(alone(x), made_block(pool=False)(x))
    assert alone[0] is block[0]

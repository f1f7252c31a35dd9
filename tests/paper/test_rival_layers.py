"""Layers of others against a plain convolution of each image and timm."""

import pytest
import torch
from timm.layers import CondConv2d as TimmCondConv2d
from torch import nn
from torch.nn import functional as F

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.lab.train import Recipe, choose_runtime
from neural_similarity_paper.rival_layers import (
    RIVALS,
    CondConv2d,
    DeformableConv2d,
    DynamicFilter2d,
)

KINDS = tuple(RIVALS.values())
WINDOWS = [(3, 1, 1), (3, 2, 0), (5, 3, 2), (2, 1, 1)]


def make(kind, size=3, stride=1, padding=1, **options):
    layer = kind(4, 5, size, stride=stride, padding=padding, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def images(*size):
    return torch.randn(*(size or (3, 4, 7, 9)), dtype=torch.double)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", [CondConv2d, DynamicFilter2d])
def test_every_image_is_a_plain_convolution_with_its_kernel(kind, window):
    layer, x = make(kind, *window), images()
    kernels = layer.kernels(x.mean((2, 3)))
    _, stride, padding = window
    pairs = zip(x, kernels, strict=True)
    expected = [F.conv2d(one[None], k, layer.bias, stride, padding) for one, k in pairs]
    torch.testing.assert_close(layer(x), torch.cat(expected))


def test_condconv_is_timms():
    layer, x = make(CondConv2d, bias=False), images()
    timms = TimmCondConv2d(4, 5, 3, padding=1, num_experts=4).double()
    timms.weight.data = layer.weight.data.flatten(1)
    routes = torch.sigmoid(F.linear(x.mean((2, 3)), layer.routing.weight, layer.routing.bias))
    torch.testing.assert_close(layer(x), timms(x, routes))


def test_dynamic_filters_are_a_bounded_mixture_of_kernels():
    layer, averages = make(DynamicFilter2d), 3 * images(6, 4)
    units = torch.tanh(F.linear(averages, layer.hide.weight, layer.hide.bias))
    mixed = units @ layer.generate.weight.T + layer.generate.bias
    torch.testing.assert_close(layer.kernels(averages), mixed.view(6, 5, 4, 3, 3))
    largest = layer.generate.weight.abs().sum(1) + layer.generate.bias.abs()
    assert (layer.kernels(1e6 * averages).flatten(1).abs() <= largest * (1 + 1e-12)).all()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_deformable_starts_as_the_plain_convolution(window):
    size, stride, padding = window
    layer, x = DeformableConv2d(4, 5, size, stride=stride, padding=padding).double(), images()
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, stride, padding))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences(kind):
    layer = kind(2, 2, 2, padding=1, bias=False).double()
    if kind is DeformableConv2d:  # off the grid, where bilinear interpolation has its kinks
        nn.init.constant_(layer.predict.bias, 0.3)
    names, values = zip(*layer.named_parameters(), strict=True)

    def output(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (images(2, 2, 3, 3).requires_grad_(), *values))


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_cnn9_has_nine_of_them_and_trains_in_bf16(name):
    network = models.build(name, 10, width=0.1)
    layers = [m for m in network.modules() if isinstance(m, KINDS)]
    assert len(layers) == 9
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(torch.randn(2, 3, 32, 32)).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_layout_changes_no_score(name):
    model = models.build(name, 10, width=0.1).double()
    x = torch.randn(2, 3, 32, 32).double()
    expected = model(x)
    runtime = choose_runtime("cpu", "fp32", channels_last=True)
    placed = runtime.place_model(model)
    kernels = [tensor for tensor in placed.parameters() if tensor.dim() == 4]
    assert all(k.is_contiguous(memory_format=torch.channels_last) for k in kernels)
    torch.testing.assert_close(placed(runtime.place_images(x)), expected)


def test_starts_are_those_of_the_layers_also_in_a_network():
    for layer in models.build("cnn9_deformable", 10, width=0.1).modules():
        if isinstance(layer, DeformableConv2d):
            assert not layer.predict.weight.any()
    for layer in models.build("cnn9_condconv", 10).modules():
        if isinstance(layer, CondConv2d):
            assert not layer.routing.bias.any()
            he = (2 / layer.weight[0, 0].numel()) ** 0.5
            assert layer.weight.std().item() == pytest.approx(he, rel=0.1)
    torch.manual_seed(0)
    deepest = models.build("cnn9_dynamic_filter", 10).conv3_3[0]
    kernels = deepest.kernels(torch.rand(50, 128))
    assert deepest.generate.in_features == 4
    assert 0.8 < kernels.std().item() / (2 / 1152) ** 0.5 < 2


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_rivals_take_no_similarity(name):
    with pytest.raises(ValueError, match=r"`similarity` must be None in a network of .*, got 'st"):
        models.build(name, 10, similarity="static-full")
    with pytest.raises(ValueError, match=f"`similarity` must be none for {name}, got Static"):
        Recipe(model=name, similarity=ns.Static(ns.Full()))

"""SphereNet-9 and the wide CNN-9 of Table 8, with and without self-attention."""

from math import prod

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neural_similarity as ns
from neural_similarity import models

WIDE = [models.cnn9_wide, models.spherenet9]
wide = pytest.mark.parametrize("make", WIDE, ids=lambda make: make.__name__)
FILTERS = [128] * 3 + [192] * 3 + [256] * 3


def kernels(model):
    return [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.weight[0, 0].numel() == 9]


@wide
@pytest.mark.parametrize("attended", [False, True])
def test_the_four_rows_of_table_8(make, attended):
    """Self-attention, of the convolutions of the network, stands behind the first two pools."""
    model = models.build(make.__name__ + "_attention" * attended, 10)
    kind = ns.SphereConv2d if make is models.spherenet9 else ns.Conv2d
    assert [layer.out_channels for layer in kernels(model)] == FILTERS
    assert {type(layer) for layer in kernels(model)} == {kind}
    fc = next(p for name, p in model.named_parameters() if name.startswith("fc."))
    assert (fc.shape[0], prod(fc.shape[1:])) == (256, 256 * 4 * 4)
    assert model.classifier.weight.shape == (10, 256)
    names = [name for name, _ in model.named_children()]
    places = [names[names.index(name) - 1] for name in names if name.startswith("attention")]
    assert places == ["conv1_3", "conv2_3"] * attended
    assert all(isinstance(model.get_submodule(place)[2], nn.MaxPool2d) for place in places)
    queries = [m.query for m in model.modules() if isinstance(m, ns.SelfAttention)]
    assert [query.weight.shape for query in queries] == [
        (16, 128, 1, 1),
        (24, 192, 1, 1),
    ] * attended
    assert {isinstance(query, ns.SphereConv2d) for query in queries} <= {kind is ns.SphereConv2d}


def test_the_two_networks_of_table_8_have_the_same_parameters():
    sizes = [sorted(p.numel() for p in make(10).parameters()) for make in WIDE]
    assert sizes[0] == sizes[1]


@wide
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_self_attention_starts_as_the_network_without(make, variant):
    networks = []
    for self_attention in (False, True):
        torch.manual_seed(5)
        options = {"width": 0.1, "variant": variant, "self_attention": self_attention}
        networks.append(make(10, **options).double())
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert ns.max_difference(*networks, x) == 0
    plain, attended = (network.state_dict() for network in networks)
    extra = attended.keys() - plain.keys()
    assert extra
    assert all(name.startswith(("attention1.", "attention2.")) for name in extra)


def test_a_spherenet_is_its_layers():
    """Recomputed with the functions: SphereConv, normalisation, ReLU, pools, classifier."""
    model = models.spherenet9(10, width=0.05, angle="linear").double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    y = x
    for stage in (1, 2, 3):
        for layer in (1, 2, 3):
            conv, norm = model.get_submodule(f"conv{stage}_{layer}")[:2]
            y = ns.functional.sphere_conv2d(y, conv.weight, padding=1, angle="linear")
            y = F.relu(norm(y))
        y = F.max_pool2d(y, 2)
    fc, norm, _ = model.fc
    y = F.relu(norm(ns.functional.sphere_conv2d(y, fc.weight, angle="linear"))).flatten(1)
    expected = F.linear(y, model.classifier.weight, model.classifier.bias)
    torch.testing.assert_close(model(x), expected)


def test_the_released_spherenet_ends_plainly():
    model = models.spherenet9(10, width=0.05, variant="released")
    assert type(model.fc) is ns.SphereConv2d
    assert model.classifier.bias is None
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@wide
@pytest.mark.parametrize("size", [20, 32])
def test_a_step_of_training_reaches_every_parameter(make, size):
    model = make(3, in_channels=1, image_size=size, width=0.05, self_attention=True)
    for name in ("attention1", "attention2"):
        nn.init.ones_(model.get_submodule(name).gain)
    loss = F.cross_entropy(model(torch.randn(4, 1, size, size)), torch.arange(4) % 3)
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())

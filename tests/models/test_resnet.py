"""ResNets against torchvision's."""

import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import models

NAMES = ["resnet18", "resnet34", "resnet50"]


def randomized(network):
    """Normalisation away from its start, so that every number matters in evaluation too."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.normal_(layer.running_mean, std=0.3)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return network


@pytest.mark.parametrize("similarity", ["none", "static-full", "dynamic-diagonal"])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_torchvisions_with_its_weights(name, similarity):
    theirs = randomized(getattr(torchvision.models, name)(num_classes=11)).double()
    ours = getattr(models, name)(11, similarity=similarity).double()
    result = ours.load_state_dict(theirs.state_dict(), strict=similarity == "none")
    assert all(".similarity." in key for key in result.missing_keys)
    assert not result.unexpected_keys
    x = torch.randn(2, 3, 65, 70, dtype=torch.float64)
    for training in (False, True):
        assert_close(ours.train(training)(x), theirs.train(training)(x))


@pytest.mark.parametrize("similarity", [s for s in ns.SIMILARITIES if s != "none"])
@pytest.mark.parametrize("name", NAMES)
def test_similarities_stand_where_convert_puts_them(name, similarity):
    with torch.device("meta"):
        converted = ns.convert(getattr(torchvision.models, name)(), similarity)
        ours = getattr(models, name)(similarity=similarity)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (ours, converted)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("similarity", list(ns.SIMILARITIES))
def test_the_stem_is_plain_where_too_many_numbers_would_be_predicted(similarity):
    with torch.device("meta"):
        stem = models.resnet18(similarity=similarity).conv1
    assert (stem.similarity is None) == (similarity in ("none", "dynamic-full"))

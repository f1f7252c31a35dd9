"""Similarities are in the mode of their layer, wherever they come from."""

import pytest
import torch
from torch import nn

import neural_similarity as ns

PREDICTED = ns.Dynamic(ns.Diagonal(), ns.SphereNet(hidden=4, batch_norm=True))


def network():
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("similarity", [PREDICTED, "static-full"], ids=str)
def test_a_converted_network_is_in_one_mode_all_through(similarity, training):
    model = ns.convert(network().train(training), similarity)
    assert set(modes(model).values()) == {training}


@pytest.mark.parametrize("training", [False, True])
def test_an_adapter_takes_the_mode_of_its_network(training, tmp_path):
    backbone = network().train(not training)
    adapted = ns.convert(backbone, PREDICTED)
    file = ns.save_adapter(adapted, tmp_path / "a.safetensors")
    switch = ns.adapters(backbone, a=file)
    backbone.train(training)
    for name in ("a", None, "a"):
        switch.use(name)
        assert set(modes(backbone).values()) == {training}, name
    assert set(modes(ns.load_adapter(switch.use(None).backbone, file)).values()) == {training}


def test_an_evaluating_adapter_leaves_its_statistics_as_they_are(tmp_path):
    backbone = network().eval()
    file = ns.save_adapter(ns.convert(backbone, PREDICTED), tmp_path / "a.safetensors")
    model = ns.load_adapter(backbone, file)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(torch.randn(2, 4, 7, 7))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

"""What trains on a frozen backbone: similarities and what is named, and what the network says."""

import pytest
import torch
from torch import nn

import neural_similarity as ns


@pytest.fixture
def network():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    layers = {"body": body, "flat": nn.Flatten(), "fc": nn.Linear(4 * 4 * 4, 5)}
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return ns.convert(network, "static-diagonal")


WEIGHTS = {f"{i}.{n}" for i in ("fc", "body.0", "body.1", "body.3") for n in ("weight", "bias")}
M = {"body.0.similarity.raw", "body.3.similarity.raw"}


@pytest.mark.parametrize(
    ("train", "extra"),
    [
        (None, set()),
        ((), set()),
        ("fc", {"fc.weight", "fc.bias"}),
        ("fc.bias", {"fc.bias"}),
        (["fc", "body.1"], {"fc.weight", "fc.bias", "body.1.weight", "body.1.bias"}),
        ("*.bias", {"body.0.bias", "body.1.bias", "body.3.bias", "fc.bias"}),
        ("body.[13]", {f"body.{i}.{name}" for i in (1, 3) for name in ("weight", "bias")}),
        ("*", WEIGHTS),
        ("M", set()),
        ("head", {"fc.weight", "fc.bias"}),
        ("M+head+norm", {"fc.weight", "fc.bias", "body.1.weight", "body.1.bias"}),
        ("bias", {f"{i}.bias" for i in ("fc", "body.0", "body.1", "body.3")}),
        ("M+all", WEIGHTS),
    ],
)
def test_similarities_and_what_is_named_train(network, train, extra, caplog):
    with caplog.at_level("INFO"):
        frozen = ns.freeze_backbone(network, train=train)
    assert frozen is network
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained == M | extra
    numbers = sum(p.numel() for name, p in network.named_parameters() if name in trained)
    told = [(f"{numbers} of {112 + 8 + 148 + 325 + 18} parameters train", "INFO")]
    head = [("'fc' is frozen, too; train='fc' trains it", "WARNING")] if train is None else []
    assert [(r.message, r.levelname) for r in caplog.records] == told + head


def test_modules_may_be_named_by_themselves(network):
    ns.freeze_backbone(network, train=[network.fc, "body.1"])
    assert network.fc.weight.requires_grad
    assert network.body[1].bias.requires_grad
    assert not network.body[3].weight.requires_grad
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network.train()(torch.randn(6, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    moved = {n for n, value in network.state_dict().items() if not torch.equal(value, before[n])}
    assert moved == M | {"fc.weight", "fc.bias", "body.1.weight", "body.1.bias"}


@pytest.mark.parametrize(
    "nothing", ["M+hed", "M+lora", "M+", "fc.weights", "*.gamma", "flat", ["fc", "b"], 3]
)
def test_names_of_nothing_are_refused(network, nothing):
    with pytest.raises(ValueError, match="`train` must"):
        ns.freeze_backbone(network, train=nothing)
    with pytest.raises(ValueError, match="got Linear"):
        ns.freeze_backbone(network, train=nn.Linear(2, 2))
    assert all(p.requires_grad for p in network.parameters())


def test_a_word_that_is_a_name_in_the_network_is_that_name():
    network = nn.Sequential()
    for name in ("one", "norm"):
        network.add_module(name, nn.LayerNorm(4))
    for train, expected in (("norm", {"norm"}), ("norm+head", {"one", "norm"})):
        ns.freeze_backbone(network, train=train)
        trained = {n.partition(".")[0] for n, p in network.named_parameters() if p.requires_grad}
        assert trained == expected


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("M+head", "`model` must have"),
        ("norm", "got 'norm' for a network without gains"),
        ("bias", "got 'bias' for a network without biases"),
    ],
)
def test_words_without_what_they_name_are_refused(train, message):
    with pytest.raises(ValueError, match=message):
        ns.freeze_backbone(nn.Sequential(nn.Linear(2, 2, bias=False)), train=train)


@pytest.mark.parametrize(
    ("train", "extra"),
    [("head", {"weight", "bias"}), ("bias", {"bias"}), ("all", {"weight", "bias"})],
)
def test_words_name_parts_of_a_network_of_one_layer(train, extra):
    layer = ns.freeze_backbone(ns.Conv2d(2, 2, 3, similarity="static-full"), train=f"M+{train}")
    trained = {name for name, p in layer.named_parameters() if p.requires_grad}
    assert trained == {"similarity.raw"} | extra

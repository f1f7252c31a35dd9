"""ResNets against torchvision's, and those for CIFAR against their definition."""

from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.lab.data import load_dataset

NAMES = ["resnet18", "resnet34", "resnet50"]
DATA = Path(__file__).parents[2] / "data"
ACCURACIES = {"resnet20": 0.9173, "resnet56": 0.9339}
DEPTHS = {"resnet20": 3, "resnet56": 9}


def randomized(network):
    """Normalisation away from its start, so that every number matters in evaluation too."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.normal_(layer.running_mean, std=0.3)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return network


@pytest.mark.long
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


class Weights:
    """The convolutions and normalisations of a network, one after another, by state_dict key."""

    def __init__(self, network):
        self.state, self.training = network.state_dict(), network.training

    def conv(self, x, name, stride=1):
        kernel = self.state[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    def norm(self, x, name):
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (self.state[f"{name}.{part}"] for part in parts)
        statistics = (None, None) if self.training else (mean, var)
        return F.batch_norm(x, *statistics, weight, bias, training=self.training)

    def classify(self, x, name="classifier"):
        return F.linear(x.mean((2, 3)), self.state[f"{name}.weight"], self.state[f"{name}.bias"])


def definition(network, x, depth):
    """He et al., §4.2: blocks of two convolutions, shortcuts of every second position and zeros."""
    weights = Weights(network)

    def block(x, name, stride):
        y = weights.norm(weights.conv(x, f"{name}conv1", stride), f"{name}bn1").relu()
        y = weights.norm(weights.conv(y, f"{name}conv2"), f"{name}bn2")
        if stride == 2:
            x = x[:, :, ::2, ::2]
            zeros = torch.zeros(len(x), x.shape[1] // 2, *x.shape[2:], dtype=x.dtype)
            x = torch.cat([zeros, x, zeros], 1)
        return (x + y).relu()

    x = weights.norm(weights.conv(x, "conv1"), "bn1").relu()
    for stage in (1, 2, 3):
        for number in range(depth):
            x = block(x, f"layer{stage}.{number}.", 2 if stage > 1 and number == 0 else 1)
    return weights.classify(x, "linear")


@pytest.mark.parametrize("name", ["resnet20", "resnet56"])
def test_outputs_are_the_definitions(name):
    network = randomized(getattr(ns.models, name)(7)).double().eval()
    x = torch.randn(2, 3, 31, 34).double()
    with torch.no_grad():
        assert_close(network(x), definition(network, x, DEPTHS[name]))
    assert sum(p.dim() == 4 for p in network.parameters()) == 6 * DEPTHS[name] + 1


def test_parameters_are_the_papers():
    sizes = [ns.models.parameters(ns.models.build(name, 10)) for name in DEPTHS]
    assert [round(size / 1e6, 2) for size in sizes] == [0.27, 0.85]
    network = ns.models.resnet20()
    assert ns.macs(network, (3, 32, 32)) == ns.models.macs(network, 3, 32, 32)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize("name", ["resnet20", pytest.param("resnet56", marks=pytest.mark.slow)])
def test_the_public_weights_have_their_accuracy(name):
    file = DATA / "pretrained-cifar10" / f"{name}.pt"
    if not file.exists() or not (DATA / "cifar-10-batches-bin").is_dir():
        pytest.skip(f"no {file}, or no CIFAR-10 beside it; ../shared/data/prepare.py writes both")
    network = getattr(ns.models, name)().eval()
    network.load_state_dict(torch.load(file, weights_only=True))
    network = ns.convert(network, "static-full")
    test = load_dataset("cifar10", DATA).test
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    right = 0
    with torch.no_grad():
        for images, labels in zip(test.pixels.split(500), test.labels.split(500), strict=True):
            x = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
            right += (network(x).argmax(1) == labels).sum().item()
    assert abs(right / 10_000 - ACCURACIES[name]) <= 0.0002


def resnet12(network, x):
    weights = Weights(network)
    for stage in range(1, 5):
        block, y = f"layer{stage}.0", x
        for number in (1, 2, 3):
            y = y if number == 1 else F.leaky_relu(y, 0.1)
            y = weights.norm(weights.conv(y, f"{block}.conv{number}"), f"{block}.bn{number}")
        shortcut = weights.conv(x, f"{block}.downsample.0")
        y = y + weights.norm(shortcut, f"{block}.downsample.1")
        x = F.max_pool2d(F.leaky_relu(y, 0.1), 2)
    return weights.classify(x)


def wrn28_10(network, x):
    weights = Weights(network)
    x = weights.conv(x, "conv")
    for group in (1, 2, 3):
        for number in range(4):
            block, stride = f"group{group}.{number}", 1 + (group > 1 and number == 0)
            active = weights.norm(x, f"{block}.bn1").relu()
            y = weights.norm(weights.conv(active, f"{block}.conv1", stride), f"{block}.bn2").relu()
            if number == 0:
                x = weights.conv(active, f"{block}.shortcut", stride)
            x = x + weights.conv(y, f"{block}.conv2")
    return weights.classify(weights.norm(x, "norm").relu())


@pytest.mark.parametrize("define", [resnet12, wrn28_10])
def test_networks_compute_their_definitions(define):
    network = models.build(define.__name__, 7, image_size=20, width=0.1).double()
    x = torch.randn(3, 3, 20, 20).double()
    assert_close(network(x), define(network, x))

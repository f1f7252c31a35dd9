"""ResNet-12 and WRN-28-10 against their definitions, written out with the networks' numbers."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity import models

DOUBLE = {"dtype": torch.float64}


class Weights:
    """The convolutions and normalisations of a network, one after another, by state_dict key."""

    def __init__(self, network):
        self.state = network.state_dict()

    def conv(self, x, name, stride=1):
        kernel = self.state[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    def norm(self, x, name):
        line = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return F.batch_norm(x, None, None, *line, training=True)

    def classify(self, x):
        mean = x.mean((2, 3))
        return F.linear(mean, self.state["classifier.weight"], self.state["classifier.bias"])


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
    x = torch.randn(3, 3, 20, 20, **DOUBLE)
    assert_close(network(x), define(network, x))

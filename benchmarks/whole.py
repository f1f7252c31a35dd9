"""Networks that people have, to be converted: a ResNet, an EfficientNet, a U-Net."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor, nn

from benchmarks.networks import CHANNELS, CLASSES
from neural_similarity import models


def _efficientnet() -> nn.Module:
    import timm  # The other networks need no timm.

    # Without dropout: two copies must compute the same.
    return timm.create_model("tf_efficientnet_lite0", num_classes=CLASSES, drop_rate=0.0)


class UNet(nn.Module):
    """Two 3×3 convolutions at each of four sizes on the way down, and on the way up again.

    Scores are averages over positions (https://arxiv.org/abs/1505.04597 has one for each).
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)):
        super().__init__()
        sides = (CHANNELS, *widths)
        self.down = nn.ModuleList(map(_pair, sides, widths))
        self.up = nn.ModuleList(_pair(high + low, low) for low, high in pairwise(widths))
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            maps.append(x)
        for block, beside in zip(self.up[::-1], maps[-2::-1], strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), beside], 1))
        return self.head(x).mean((2, 3))


def _pair(channels: int, filters: int) -> nn.Sequential:
    layers = []
    for width in (channels, filters):
        layers += [nn.Conv2d(width, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "ResNet-18": partial(models.build, "resnet18", CLASSES),
        "EfficientNet-Lite0": _efficientnet,
        "U-Net": UNet,
    }
)

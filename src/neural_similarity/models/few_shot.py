"""The residual networks of few-shot learning: ResNet-12 (MetaOptNet's) and WRN-28-10 (LEO's)."""

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.models.building import (
    Layers,
    NamedSequential,
    average_head,
    build_sequential,
    check_sizes,
    residual_stages,
    scale_channels,
)
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity, SimilarityName

_CHANNELS12 = (64, 160, 320, 640)
_SHRINK = 16
"""Four pools halve the map."""
_SLOPE = 0.1
_STEM = 16
_CHANNELS28 = (160, 320, 640)
_BLOCKS = 4


def resnet12(
    num_classes: int = 64,
    *,
    in_channels: int = 3,
    image_size: int = 84,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-12: four residual blocks of three 3×3 convolutions, each ending in a 2×2 pool.

    Leaky ReLU of slope 0.1, 64, 160, 320 and 640 channels, then the average over the map, so that
    `network[:-1]` embeds an image in 640 numbers: the form of MetaOptNet (Lee et al. 2019,
    https://arxiv.org/abs/1904.03758), whose embedding has the same parameters and state_dict keys.
    MetaOptNet regularises by DropBlock, which this network leaves out, and follows the ResNet-12 of
    TADAM, whose blocks are narrower. The twelve 3×3 convolutions have the similarity, the 1×1 ones
    of the shortcuts do not. Images must have at least 16 pixels. Starts at He's initialisation, the
    same for every similarity.
    """
    check_sizes(num_classes, in_channels, image_size, smallest=_SHRINK)
    layers: Layers = {}
    for stage, channels in enumerate(scale_channels(_CHANNELS12, width), start=1):
        layers[f"layer{stage}"] = nn.Sequential(_PooledBlock(in_channels, channels))
        in_channels = channels
    layers |= average_head("classifier", in_channels, num_classes)
    return build_sequential(layers, similarity)


class _PooledBlock(nn.Module):
    """Pool(LeakyReLU(S(x) + F(x))), F three 3×3 convolutions and S one of 1×1."""

    def __init__(self, in_channels: int, channels: int):
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.bn1(self.conv1(x)), _SLOPE, inplace=True)
        y = F.leaky_relu(self.bn2(self.conv2(y)), _SLOPE, inplace=True)
        y = self.bn3(self.conv3(y)) + self.downsample(x)
        return F.max_pool2d(F.leaky_relu(y, _SLOPE, inplace=True), 2)


def wrn28_10(
    num_classes: int = 64,
    *,
    in_channels: int = 3,
    image_size: int = 80,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """WRN-28-10: 28 layers, ten times as wide as a ResNet (https://arxiv.org/abs/1605.07146).

    A 3×3 convolution, three groups of four blocks [batch norm, ReLU, 3×3 convolution]×2 with 160,
    320 and 640 channels, batch norm, ReLU and the average over the map, so that `network[:-1]`
    embeds an image in 640 numbers. LEO (https://arxiv.org/abs/1807.05960) trains it on images of
    80 pixels. All 3×3 convolutions have the similarity, the 1×1 ones of the shortcuts do not.
    Starts at He's initialisation, the same for every similarity; no dropout.
    """
    check_sizes(num_classes, in_channels, image_size)
    stem, *groups = scale_channels((_STEM, *_CHANNELS28), width)
    layers: Layers = {"conv": Conv2d(in_channels, stem, 3, padding=1, bias=False)}
    layers |= residual_stages(_WideBlock, stem, groups, (_BLOCKS,) * len(groups), name="group")
    layers |= {"norm": nn.BatchNorm2d(groups[-1]), "relu": nn.ReLU(inplace=True)}
    layers |= average_head("classifier", groups[-1], num_classes)
    return build_sequential(layers, similarity)


class _WideBlock(nn.Module):
    """S(a) + F(a), a = ReLU(norm(x)); S(x) is x where its shape does not change."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=True)
        y = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return y + (x if self.shortcut is None else self.shortcut(active))

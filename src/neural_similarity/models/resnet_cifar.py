"""ResNet-20 and -56 for CIFAR (He et al., https://arxiv.org/abs/1512.03385, §4.2)."""

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.models.building import (
    Layers,
    NamedSequential,
    build_sequential,
    check_sizes,
    scale_channels,
)
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity, SimilarityName

_CHANNELS = (16, 32, 64)


def resnet20(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-20: a 3×3 convolution, three stages of three blocks, 16, 32 and 64 channels wide.

    Shortcuts are the paper's option A: every second position, and zeros for new channels, so that
    only the 3×3 convolutions, normalisation and the classifier have parameters. The weights at
    github.com/akamaster/pytorch_resnet_cifar10 have the same state_dict keys and load (similarities
    apart); their input is pixels / 255, normalised by ImageNet's mean and deviation. Starts at He's
    initialisation, the same for every similarity.
    """
    check_sizes(num_classes, in_channels, image_size)
    return build_sequential(_network_layers(num_classes, in_channels, width, depth=3), similarity)


def resnet56(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-56: `resnet20` with nine blocks a stage."""
    check_sizes(num_classes, in_channels, image_size)
    return build_sequential(_network_layers(num_classes, in_channels, width, depth=9), similarity)


def _network_layers(num_classes: int, in_channels: int, width: float, depth: int) -> Layers:
    sizes = scale_channels(_CHANNELS, width)
    before = sizes[0]
    layers: Layers = {
        "conv1": Conv2d(in_channels, before, 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(before),
        "relu": nn.ReLU(inplace=True),
    }
    for stage, channels in enumerate(sizes, start=1):
        layers[f"layer{stage}"] = blocks = nn.Sequential()
        for number in range(depth):
            blocks.append(_Block(before, channels, stride=2 if stage > 1 and not number else 1))
            before = channels
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return layers | {"linear": nn.Linear(before, num_classes)}


class _Block(nn.Module):
    """ReLU(S(x) + F(x)), F two 3×3 convolutions and S a shortcut without parameters."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        new = channels - in_channels
        self.new_channels = new // 2, new - new // 2

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        before, after = self.new_channels
        shortcut = F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, before, after))
        return F.relu(self.bn2(self.conv2(y)) + shortcut, inplace=True)

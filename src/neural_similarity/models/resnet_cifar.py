"""ResNet-20 and -56 for CIFAR (He et al., https://arxiv.org/abs/1512.03385, §4.2)."""

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
from neural_similarity.models.resnet import BasicBlock
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
    channels = scale_channels(_CHANNELS, width)
    layers: Layers = {
        "conv1": Conv2d(in_channels, channels[0], 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(channels[0]),
        "relu": nn.ReLU(inplace=True),
    }
    layers |= residual_stages(_Block, channels[0], channels, (depth,) * len(channels))
    return layers | average_head("linear", channels[-1], num_classes)


class _PaddedShortcut(nn.Module):
    """x with zeros for new channels, at every `stride`-th position."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        new = channels - in_channels
        self.new_channels = new // 2, new - new // 2

    def forward(self, x: Tensor) -> Tensor:
        strided = x[..., :: self.stride, :: self.stride]
        return F.pad(strided, (0, 0, 0, 0, *self.new_channels))


class _Block(BasicBlock):
    shortcut = staticmethod(_PaddedShortcut)

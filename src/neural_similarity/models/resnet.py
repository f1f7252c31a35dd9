"""ResNet-18, -34 and -50 (He et al., https://arxiv.org/abs/1512.03385), torchvision's layers."""

from collections.abc import Sequence

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

_CHANNELS = (64, 128, 256, 512)


def resnet18(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-18 with a similarity in all but the 1×1 convolutions. Author response, table 2.

    Computes what torchvision's `resnet18` does and has its state_dict keys, so that its weights
    load with only `*.similarity.*` missing. The 7×7 stem has the similarity too, unless more than
    625 entries of M would be predicted per position: a dynamic full M has 2401, so the stem stays
    plain, as in `ns.convert`. Starts at He's initialisation, the same for every similarity, as the
    other networks do (torchvision's initialisation counts outputs in place of inputs).
    """
    sizes = num_classes, in_channels, image_size
    return _build_resnet(BasicBlock, (2, 2, 2, 2), sizes, width, similarity)


def resnet34(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-34: `resnet18` with 3, 4, 6 and 3 blocks, torchvision's `resnet34`."""
    sizes = num_classes, in_channels, image_size
    return _build_resnet(BasicBlock, (3, 4, 6, 3), sizes, width, similarity)


def resnet50(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """ResNet-50 with a similarity in its stem and in the 3×3 convolutions of its 16 blocks.

    Blocks are 1×1, 3×3, 1×1; the 3×3 has the stride, as in torchvision's `resnet50`, whose weights
    load. Everything else: see `resnet18`.
    """
    sizes = num_classes, in_channels, image_size
    return _build_resnet(_Bottleneck, (3, 4, 6, 3), sizes, width, similarity)


def _build_resnet(
    block: "type[BasicBlock] | type[_Bottleneck]",
    depths: Sequence[int],
    sizes: tuple[int, int, int],
    width: float,
    similarity: Similarity | SimilarityName | None,
) -> NamedSequential:
    check_sizes(*sizes)
    (num_classes, in_channels, _), channels = sizes, scale_channels(_CHANNELS, width)
    layers: Layers = {
        "conv1": Conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=False),
        "bn1": nn.BatchNorm2d(channels[0]),
        "relu": nn.ReLU(inplace=True),
        "maxpool": nn.MaxPool2d(3, stride=2, padding=1),
    }
    layers |= residual_stages(block, channels[0], channels, depths, expansion=block.expansion)
    layers |= average_head("fc", channels[-1] * block.expansion, num_classes)
    return build_sequential(layers, similarity)


class BasicBlock(nn.Module):
    """ReLU(S(x) + F(x)), F two 3×3 convolutions and S a shortcut."""

    expansion = 1

    @staticmethod
    def shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
        """x as it is, or through a 1×1 convolution where its shape changes."""
        if stride == 1 and in_channels == channels:
            return nn.Identity()
        convolution = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = self.shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x), inplace=True)


class _Bottleneck(nn.Module):
    """ReLU(x + F(x)), F a 1×1, a 3×3 and a 1×1 convolution to four times the channels."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = BasicBlock.shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x), inplace=True)

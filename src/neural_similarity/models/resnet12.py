"""ResNet-12, the deeper network of few-shot learning, in the form of MetaOptNet."""

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.models.building import check_sizes, scaled, sequential
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity

_CHANNELS = (64, 160, 320, 640)
_SHRINK = 16
"""Four pools halve the map."""
_SLOPE = 0.1


def resnet12(
    num_classes: int = 64,
    *,
    in_channels: int = 3,
    image_size: int = 84,
    width: float = 1,
    similarity: Similarity | str | None = None,
) -> nn.Sequential:
    """ResNet-12: four residual blocks of three 3×3 convolutions, each ending in a 2×2 pool.

    Leaky ReLU of slope 0.1, 64, 160, 320 and 640 channels, then the average over the map, so that
    `network[:-1]` embeds an image in 640 numbers: the form of MetaOptNet (Lee et al. 2019,
    https://arxiv.org/abs/1904.03758), whose embedding has the same parameters and state_dict keys.
    It regularises by DropBlock, which this network leaves out. The ResNet-12 of TADAM, which it
    follows, has narrower blocks. The twelve 3×3 convolutions have the similarity, the 1×1 ones of
    the shortcuts do not. Starts at He's initialisation, the same for every similarity.

    Args:
        num_classes: Number of outputs; 64 are the training classes of Mini-ImageNet.
        in_channels: Channels of the images.
        image_size: The usual size of the images; the network averages over maps of every size from
            16 pixels on.
        width: Factor on every number of channels.
        similarity: Of the 3×3 convolutions, as in `ns.Conv2d`.

    Shape:
        (n, in_channels, height, width) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    check_sizes(num_classes, in_channels, image_size, smallest=_SHRINK)
    layers: dict[str, nn.Module] = {}
    for stage, channels in enumerate(scaled(_CHANNELS, width), start=1):
        layers[f"layer{stage}"] = nn.Sequential(_Block(in_channels, channels))
        in_channels = channels
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["classifier"] = nn.Linear(in_channels, num_classes)
    return sequential(layers, similarity)


class _Block(nn.Module):
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

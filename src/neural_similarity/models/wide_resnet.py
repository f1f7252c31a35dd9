"""WRN-28-10, the network whose features LEO uses (Table 6)."""

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.models.building import check_sizes, scaled, sequential
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity

_STEM = 16
_CHANNELS = (160, 320, 640)
_BLOCKS = 4


def wrn28_10(
    num_classes: int = 64,
    *,
    in_channels: int = 3,
    image_size: int = 80,
    width: float = 1,
    similarity: Similarity | str | None = None,
) -> nn.Sequential:
    """WRN-28-10: 28 layers, ten times as wide as a ResNet (https://arxiv.org/abs/1605.07146).

    A 3×3 convolution, three groups of four blocks [batch norm, ReLU, 3×3 convolution]×2 with 160,
    320 and 640 channels, batch norm, ReLU and the average over the map, so that `network[:-1]`
    embeds an image in 640 numbers. LEO (https://arxiv.org/abs/1807.05960) trains it on images of
    80 pixels. All 3×3 convolutions have the similarity, the 1×1 ones of the shortcuts do not.
    Starts at He's initialisation, the same for every similarity; no dropout.

    Args:
        num_classes: Number of outputs; 64 are the training classes of Mini-ImageNet.
        in_channels: Channels of the images.
        image_size: The usual size of the images; the network averages over maps of every size.
        width: Factor on every number of channels.
        similarity: Of the 3×3 convolutions, as in `ns.Conv2d`.

    Shape:
        (n, in_channels, height, width) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    check_sizes(num_classes, in_channels, image_size)
    stem, *groups = scaled((_STEM, *_CHANNELS), width)
    layers: dict[str, nn.Module] = {"conv": Conv2d(in_channels, stem, 3, padding=1, bias=False)}
    before = stem
    for number, channels in enumerate(groups, start=1):
        layers[f"group{number}"] = blocks = nn.Sequential()
        for block in range(_BLOCKS):
            blocks.append(_Block(before, channels, stride=2 if number > 1 and not block else 1))
            before = channels
    layers |= {"norm": nn.BatchNorm2d(before), "relu": nn.ReLU(inplace=True)}
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["classifier"] = nn.Linear(before, num_classes)
    return sequential(layers, similarity)


class _Block(nn.Module):
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

"""CNN-10, the paper's ImageNet network (Table 7), and CNN-10++."""

from torch import nn

from neural_similarity.models.building import (
    Sizes,
    check_sizes,
    fully_connected,
    padding,
    sequential,
    stages,
)
from neural_similarity.models.conv_block import conv_block
from neural_similarity.nn.text import Similarity

_CNN10 = Sizes([64, 128, 256], (3, 3, 3), 512)
_CNN10_PLUS = Sizes([88, 144, 264], (4, 4, 3), 512)
_SHRINK = 32
"""The root, the pool after it and three more pools halve the map."""


def cnn10(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | str | None = None,
) -> nn.Sequential:
    """CNN-10: 7×7 64 /2, 3×3 max pool /2, [3×3, 64]×3, pool, [128]×3, pool, [256]×3, pool, FC 512.

    Batch normalisation and ReLU after every convolution and FC 512, which the classifier follows;
    convolutions have no bias and start at He's initialisation, the same for every similarity.
    Images whose size is not a multiple of 32 are padded with zeros to the next one.

    The paper states neither image size nor padding: images of 224 pixels and windows that halve
    the map exactly give FC 512 a map of 7×7 and the network the 8.90 M parameters of Table 5. The
    nine 3×3 convolutions have the similarity and the 7×7 root has none: nine predictors of 64
    hidden units make the table's 9.61 M with a dynamic diagonal one, ten would make 9.65 M, and
    the 32 units of Appendix A 9.26 M (`ns.SphereNet(hidden=32)`).

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        width: Factor on every number of channels.
        similarity: Of the nine 3×3 convolutions, as in `ns.Conv2d`.

    Shape:
        (n, in_channels, image_size, image_size) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    return _cnn(_CNN10.times(width), num_classes, in_channels, image_size, similarity)


def cnn10_plus(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | str | None = None,
) -> nn.Sequential:
    """CNN-10++: deeper and wider, the paper's control for parameters (Table 5).

    7×7 88 /2, 3×3 max pool /2, [3×3, 88]×4, pool, [3×3, 144]×4, pool, [3×3, 264]×3, pool, FC 512,
    classifier. The paper gives 9.71 M parameters and no sizes; these have 9.70 M, and no layer is
    smaller than CNN-10's. Arguments, shape and errors: see `cnn10`.
    """
    return _cnn(_CNN10_PLUS.times(width), num_classes, in_channels, image_size, similarity)


def _cnn(
    sizes: Sizes,
    num_classes: int,
    in_channels: int,
    image_size: int,
    similarity: Similarity | str | None,
) -> nn.Sequential:
    check_sizes(num_classes, in_channels, image_size)
    channels = sizes.channels
    size = -(-image_size // _SHRINK)
    root = nn.Conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=False)
    layers = padding(image_size, _SHRINK)
    layers |= {"root": conv_block(root), "pool0": nn.MaxPool2d(3, stride=2, padding=1)}
    layers |= stages(channels[0], channels, sizes.depths)
    layers |= fully_connected(channels[-1] * size**2, sizes.hidden, num_classes)
    return sequential(layers, similarity)

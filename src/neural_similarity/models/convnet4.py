"""CNN-4, the network of few-shot learning (Table 6)."""

from torch import nn

from neural_similarity.models.building import check_sizes, scaled, sequential, stages
from neural_similarity.nn.text import Similarity

_FILTERS = (32, 32, 32, 32)
_SHRINK = 16
"""Four pools halve the map."""


def convnet4(
    num_classes: int = 80,
    *,
    in_channels: int = 3,
    image_size: int = 84,
    width: float = 1,
    similarity: Similarity | str | None = None,
) -> nn.Sequential:
    """CNN-4: four times 3×3 convolution to 32 filters, batch norm, ReLU, 2×2 pool; classifier.

    All four convolutions have the similarity; they have no bias and start at He's initialisation,
    the same for every similarity. Pools drop an odd last row and column, as usual for this network:
    maps of 84, 42, 21, 10 and 5 pixels, so that `network[:-1]` embeds an image of 84 in 800
    numbers. Paper, §7.2; the architecture of Ravi and Larochelle
    (https://openreview.net/forum?id=rJY0-Kcll). 64 filters, as in much of the literature, are
    `width=2`.

    Args:
        num_classes: Number of outputs; 80 are the training and validation classes of
            Mini-ImageNet, on which the paper trains (App. A).
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        width: Factor on the number of filters.
        similarity: Of the four convolutions, as in `ns.Conv2d`.

    Shape:
        (n, in_channels, image_size, image_size) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    check_sizes(num_classes, in_channels, image_size, smallest=_SHRINK)
    channels = scaled(_FILTERS, width)
    layers = stages(in_channels, channels, (1,) * len(channels))
    features = channels[-1] * (image_size // _SHRINK) ** 2
    layers |= {"flatten": nn.Flatten(), "classifier": nn.Linear(features, num_classes)}
    return sequential(layers, similarity)

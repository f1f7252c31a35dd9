"""CNN-9, the paper's CIFAR network (Table 7), CNN-9++, and the wide CNN-9 of Table 8."""

from typing import Literal, get_args

from torch import nn

from neural_similarity.choices import require_known
from neural_similarity.models.building import (
    Convolution,
    Sizes,
    check_no_similarity,
    check_sizes,
    fully_connected,
    padding,
    sequential,
    stages,
)
from neural_similarity.models.conv_block import conv_block
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity

Variant = Literal["paper", "released"]

_CNN9 = Sizes([32, 64, 128], (3, 3, 3), 256)
_CNN9_PLUS = {
    "paper": Sizes([56, 112, 192], (4, 4, 4), 288),
    "released": Sizes([64, 120, 208], (4, 4, 4), 288),
}
WIDE = Sizes([128, 192, 256], (3, 3, 3), 256)
ATTENTIVE = WIDE._replace(attended=2)
SHRINK = 8
"""Three pools halve the map."""


def cnn9(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | str | None = None,
    variant: Variant = "paper",
    convolution: Convolution = Conv2d,
) -> nn.Sequential:
    """CNN-9: [3×3, 32]×3, pool, [3×3, 64]×3, pool, [3×3, 128]×3, pool, classifier.

    Batch normalisation and ReLU after every convolution; convolutions have no bias and start at
    He's initialisation, the same for every similarity. All nine have the similarity. Images whose
    size is not a multiple of 8 are padded with zeros to the next one (28 to 32 pixels).

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        width: Factor on every number of channels.
        similarity: Of the nine convolutions, as in `ns.Conv2d`.
        variant: "paper" (Table 7) ends in a fully connected layer of 256 and the classifier;
            "released" (the authors' code) has a plain 3×3 root convolution before the nine and
            ends in one convolution over the whole map to the classes.
        convolution: Makes the nine convolutions; another than `ns.Conv2d`, such as those of
            `models.rivals`, takes no similarity.

    Shape:
        (n, in_channels, image_size, image_size) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    if convolution is not Conv2d:
        check_no_similarity(similarity, f"a network of {convolution}")
    sizes = _CNN9.times(width)
    return _cnn(sizes, num_classes, in_channels, image_size, similarity, variant, convolution)


def cnn9_plus(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | str | None = None,
    variant: Variant = "paper",
) -> nn.Sequential:
    """CNN-9++: deeper and wider, the paper's control for parameters (Table 4).

    [3×3, 56]×4, pool, [3×3, 112]×4, pool, [3×3, 192]×4, pool, FC 288, classifier. The paper gives
    no sizes, only "a deeper and wider version" with slightly more parameters than its similarity
    networks; the "released" one, without its FC, has 64, 120 and 208 filters to be that.
    Arguments, shape and errors: see `cnn9`.
    """
    check_variant(variant)
    sizes = _CNN9_PLUS[variant].times(width)
    return _cnn(sizes, num_classes, in_channels, image_size, similarity, variant)


def cnn9_wide(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | str | None = None,
    variant: Variant = "paper",
    self_attention: bool = False,
) -> nn.Sequential:
    """CNN-9 with 128, 192 and 256 filters, the plain network of Table 8 (App. B.2).

    [3×3, 128]×3, pool, [3×3, 192]×3, pool, [3×3, 256]×3, pool, FC 256, classifier: the counterpart
    of `spherenet9`. Other arguments, shape and errors: see `cnn9`.

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        width: Factor on every number of channels.
        similarity: Of the nine convolutions.
        variant: How the network begins and ends.
        self_attention: Put `ns.SelfAttention` after the first two pools. The paper does not say
            where it stands; there it is in the authors' SphereNet.
    """
    sizes = (ATTENTIVE if self_attention else WIDE).times(width)
    return _cnn(sizes, num_classes, in_channels, image_size, similarity, variant)


def check_variant(variant: str) -> None:
    """Check that the variant exists."""
    require_known("variant", variant, get_args(Variant))


def _cnn(
    sizes: Sizes,
    num_classes: int,
    in_channels: int,
    image_size: int,
    similarity: Similarity | str | None,
    variant: Variant,
    convolution: Convolution = Conv2d,
) -> nn.Sequential:
    check_sizes(num_classes, in_channels, image_size)
    check_variant(variant)
    channels = sizes.channels
    size = -(-image_size // SHRINK)
    layers = padding(image_size, SHRINK)
    if variant == "released":
        root = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        layers |= {"root": conv_block(root)} | stages(
            channels[0], channels, sizes.depths, convolution
        )
        score = nn.Conv2d(channels[-1], num_classes, size, bias=False)
        layers |= {"classifier": score, "flatten": nn.Flatten()}
    else:
        layers |= stages(in_channels, channels, sizes.depths, convolution)
        layers |= fully_connected(channels[-1] * size**2, sizes.hidden, num_classes)
    return sequential(layers, similarity, channels[: sizes.attended])

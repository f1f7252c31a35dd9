"""The paper's plain networks: CNN-9 (CIFAR), CNN-10 (ImageNet), their ++, CNN-4 (few-shot)."""

from typing import Literal, get_args

from torch import nn

from neural_similarity.choices import require_known
from neural_similarity.models.building import (
    Convolution,
    NamedSequential,
    StageSizes,
    build_sequential,
    check_no_similarity,
    check_sizes,
    conv_block,
    conv_stages,
    fully_connected,
    pad_layer,
    scale_channels,
)
from neural_similarity.nn import Conv2d
from neural_similarity.nn.text import Similarity, SimilarityName

Variant = Literal["paper", "released"]

_CNN9 = StageSizes([32, 64, 128], (3, 3, 3), 256)
_CNN9_PLUS = {
    "paper": StageSizes([56, 112, 192], (4, 4, 4), 288),
    "released": StageSizes([64, 120, 208], (4, 4, 4), 288),
}
WIDE = StageSizes([128, 192, 256], (3, 3, 3), 256)
ATTENTIVE = WIDE._replace(attended=2)
SHRINK = 8
"""Three pools halve the map."""
_CNN10 = StageSizes([64, 128, 256], (3, 3, 3), 512)
_CNN10_PLUS = StageSizes([88, 144, 264], (4, 4, 3), 512)
_SHRINK10 = 32
"""The root, the pool after it and three more pools halve the map."""
_FILTERS = (32, 32, 32, 32)
_SHRINK4 = 16
"""Four pools halve the map."""


def cnn9(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
    variant: Variant = "paper",
    convolution: Convolution = Conv2d,
) -> NamedSequential:
    """CNN-9: [3×3, 32]×3, pool, [3×3, 64]×3, pool, [3×3, 128]×3, pool, classifier.

    Batch normalisation and ReLU after every convolution; convolutions have no bias and start at
    He's initialisation, the same for every similarity. All nine have the similarity. Images whose
    size is not a multiple of 8 are padded with zeros to the next one (28 to 32 pixels).

    Args:
        variant: "paper" (Table 7) ends in a fully connected layer of 256 and the classifier;
            "released" (the authors' code) has a plain 3×3 root convolution before the nine and
            ends in one convolution over the whole map to the classes.
        convolution: Makes the nine convolutions; any but `ns.Conv2d` takes no similarity.
    """
    if convolution is not Conv2d:
        check_no_similarity(similarity, f"a network of {convolution}")
    sizes = _CNN9.times_width(width)
    return _build_cnn9(
        sizes, num_classes, in_channels, image_size, similarity, variant, convolution
    )


def cnn9_plus(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
    variant: Variant = "paper",
) -> NamedSequential:
    """CNN-9++: deeper and wider, the paper's control for parameters (Table 4).

    [3×3, 56]×4, pool, [3×3, 112]×4, pool, [3×3, 192]×4, pool, FC 288, classifier. The paper gives
    no sizes, only "a deeper and wider version" with slightly more parameters than its similarity
    networks; the "released" one has no FC, and so 64, 120 and 208 filters for as many parameters.
    """
    check_variant(variant)
    sizes = _CNN9_PLUS[variant].times_width(width)
    return _build_cnn9(sizes, num_classes, in_channels, image_size, similarity, variant)


def cnn9_wide(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
    variant: Variant = "paper",
    self_attention: bool = False,
) -> NamedSequential:
    """CNN-9 with 128, 192 and 256 filters, the plain network of Table 8 (App. B.2).

    [3×3, 128]×3, pool, [3×3, 192]×3, pool, [3×3, 256]×3, pool, FC 256, classifier: the counterpart
    of `spherenet9`.

    Args:
        variant: How the network begins and ends, as in `cnn9`.
        self_attention: Put `ns.SelfAttention` after the first two pools. The paper does not say
            where it belongs; the authors' SphereNet has it there.
    """
    sizes = (ATTENTIVE if self_attention else WIDE).times_width(width)
    return _build_cnn9(sizes, num_classes, in_channels, image_size, similarity, variant)


def check_variant(variant: str) -> None:
    """Check that the variant exists."""
    require_known("variant", variant, get_args(Variant))


def _build_cnn9(
    sizes: StageSizes,
    num_classes: int,
    in_channels: int,
    image_size: int,
    similarity: Similarity | SimilarityName | None,
    variant: Variant,
    convolution: Convolution = Conv2d,
) -> NamedSequential:
    check_sizes(num_classes, in_channels, image_size)
    check_variant(variant)
    channels = sizes.channels
    size = -(-image_size // SHRINK)
    layers = pad_layer(image_size, SHRINK)
    if variant == "released":
        root = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        layers |= {"root": conv_block(root)} | conv_stages(
            channels[0], channels, sizes.depths, convolution
        )
        score = nn.Conv2d(channels[-1], num_classes, size, bias=False)
        layers |= {"classifier": score, "flatten": nn.Flatten()}
    else:
        layers |= conv_stages(in_channels, channels, sizes.depths, convolution)
        layers |= fully_connected(channels[-1] * size**2, sizes.hidden, num_classes)
    return build_sequential(layers, similarity, channels[: sizes.attended])


def cnn10(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """CNN-10: 7×7 64 /2, 3×3 max pool /2, [3×3, 64]×3, pool, [128]×3, pool, [256]×3, pool, FC 512.

    Batch normalisation and ReLU after every convolution and FC 512, which the classifier follows;
    convolutions have no bias and start at He's initialisation, the same for every similarity.
    Images whose size is not a multiple of 32 are padded with zeros to the next one.

    The paper states neither image size nor padding: images of 224 pixels and windows that halve
    the map exactly give FC 512 a map of 7×7 and the network the 8.90 M parameters of Table 5. The
    nine 3×3 convolutions have the similarity and the 7×7 root has none: nine predictors of 64
    hidden units make the table's 9.61 M with a dynamic diagonal one, ten would make 9.65 M, and
    the 32 units of Appendix A 9.26 M (`ns.SphereNet(hidden=32)`).
    """
    return _build_cnn10(_CNN10.times_width(width), num_classes, in_channels, image_size, similarity)


def cnn10_plus(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """CNN-10++: deeper and wider, the paper's control for parameters (Table 5).

    7×7 88 /2, 3×3 max pool /2, [3×3, 88]×4, pool, [3×3, 144]×4, pool, [3×3, 264]×3, pool, FC 512,
    classifier. The paper gives 9.71 M parameters and no sizes; these have 9.70 M, and no layer is
    smaller than CNN-10's.
    """
    return _build_cnn10(
        _CNN10_PLUS.times_width(width), num_classes, in_channels, image_size, similarity
    )


def _build_cnn10(
    sizes: StageSizes,
    num_classes: int,
    in_channels: int,
    image_size: int,
    similarity: Similarity | SimilarityName | None,
) -> NamedSequential:
    check_sizes(num_classes, in_channels, image_size)
    channels = sizes.channels
    size = -(-image_size // _SHRINK10)
    root = nn.Conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=False)
    layers = pad_layer(image_size, _SHRINK10)
    layers |= {"root": conv_block(root), "pool0": nn.MaxPool2d(3, stride=2, padding=1)}
    layers |= conv_stages(channels[0], channels, sizes.depths)
    layers |= fully_connected(channels[-1] * size**2, sizes.hidden, num_classes)
    return build_sequential(layers, similarity)


def convnet4(
    num_classes: int = 80,
    *,
    in_channels: int = 3,
    image_size: int = 84,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
) -> NamedSequential:
    """CNN-4: four times 3×3 convolution to 32 filters, batch norm, ReLU, 2×2 pool; classifier.

    All four convolutions have the similarity; they have no bias and start at He's initialisation,
    the same for every similarity. Pools drop an odd last row and column, as usual for this network:
    maps of 84, 42, 21, 10 and 5 pixels, so that `network[:-1]` embeds an image of 84 in 800
    numbers. Paper, §7.2; the architecture of Ravi and Larochelle
    (https://openreview.net/forum?id=rJY0-Kcll). 64 filters, as in much of the literature, are
    `width=2`. The 80 classes are those of training and validation in Mini-ImageNet, on which the
    paper trains (App. A).
    """
    check_sizes(num_classes, in_channels, image_size, smallest=_SHRINK4)
    channels = scale_channels(_FILTERS, width)
    layers = conv_stages(in_channels, channels, (1,) * len(channels))
    features = channels[-1] * (image_size // _SHRINK4) ** 2
    layers |= {"flatten": nn.Flatten(), "classifier": nn.Linear(features, num_classes)}
    return build_sequential(layers, similarity)

"""CNN-9, the paper's CIFAR network (Table 7), and CNN-9++."""

from typing import Literal, NamedTuple, get_args

from torch import nn

from neural_similarity.nn import Conv2d, sharing
from neural_similarity.nn.text import Similarity

Variant = Literal["paper", "released"]
Layers = dict[str, nn.Module]

_SHRINK = 8
"""Three pools halve the map."""


def cnn9(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | str | None = None,
    variant: Variant = "paper",
) -> nn.Sequential:
    """CNN-9: [3×3, 32]×3, pool, [3×3, 64]×3, pool, [3×3, 128]×3, pool, classifier.

    Batch normalisation and ReLU behind every convolution; convolutions have no bias and start at
    He's initialisation, the same for every similarity. All nine have the similarity. Images whose
    size is no multiple of 8 are padded with zeros to the next one (28 to 32 pixels).

    Args:
        num_classes: Number of outputs.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        width: Factor on every number of channels.
        similarity: Of the nine convolutions, as in `ns.Conv2d`.
        variant: "paper" (Table 7) ends in a fully connected layer of 256 and the classifier;
            "released" (the authors' code) has a plain 3×3 root convolution before the nine and
            ends in one convolution over the whole map to the classes.

    Shape:
        (n, in_channels, image_size, image_size) to (n, num_classes).

    Raises:
        ValueError: an argument is out of range.
    """
    widths = _Widths(_scaled((32, 64, 128), width), depth=3, hidden=_scaled((256,), width)[0])
    return _cnn(widths, num_classes, in_channels, image_size, similarity, variant)


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
    networks. Arguments, shape and errors: see `cnn9`.
    """
    widths = _Widths(_scaled((56, 112, 192), width), depth=4, hidden=_scaled((288,), width)[0])
    return _cnn(widths, num_classes, in_channels, image_size, similarity, variant)


class _Widths(NamedTuple):
    """Channels of the three stages, convolutions in each, and units of the hidden layer."""

    channels: list[int]
    depth: int
    hidden: int


def _cnn(
    widths: _Widths,
    num_classes: int,
    in_channels: int,
    image_size: int,
    similarity: Similarity | str | None,
    variant: Variant,
) -> nn.Sequential:
    _check(num_classes, in_channels, image_size, variant)
    channels = widths.channels
    size = -(-image_size // _SHRINK)
    layers = _padding(image_size)
    if variant == "released":
        root = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        layers |= {"root": _unit(root)} | _stages(channels[0], channels, widths.depth)
        score = nn.Conv2d(channels[-1], num_classes, size, bias=False)
        layers |= {"classifier": score, "flatten": nn.Flatten()}
    else:
        layers |= _stages(in_channels, channels, widths.depth)
        layers |= _fully_connected(channels[-1] * size**2, widths.hidden, num_classes)
    return _network(layers, similarity)


def _scaled(channels: tuple[int, ...], width: float) -> list[int]:
    if not width > 0:
        raise ValueError(f"`width` must be positive, got {width}")
    return [max(1, round(c * width)) for c in channels]


def _padding(image_size: int) -> Layers:
    """Zeros around images whose size is no multiple of what the pools divide by."""
    missing = -image_size % _SHRINK
    before, after = missing // 2, missing - missing // 2
    return {"pad": nn.ZeroPad2d((before, after, before, after))} if missing else {}


def _stages(in_channels: int, channels: list[int], depth: int) -> Layers:
    layers: Layers = {}
    for stage, out_channels in enumerate(channels, start=1):
        for unit in range(1, depth + 1):
            conv = Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
            layers[f"conv{stage}_{unit}"] = _unit(conv)
            in_channels = out_channels
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    return layers


def _unit(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True))


def _fully_connected(features: int, hidden: int, num_classes: int) -> Layers:
    return {
        "flatten": nn.Flatten(),
        "fc": nn.Linear(features, hidden, bias=False),
        "norm": nn.BatchNorm1d(hidden),
        "relu": nn.ReLU(inplace=True),
        "classifier": nn.Linear(hidden, num_classes),
    }


def _network(layers: Layers, similarity: Similarity | str | None) -> nn.Sequential:
    """The network at He's initialisation; similarities last, so that they leave it unchanged."""
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    with sharing():
        for layer in list(network.modules()):
            if isinstance(layer, Conv2d):
                layer.with_similarity(similarity)
    return network


def _check(num_classes: int, in_channels: int, image_size: int, variant: str) -> None:
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")
    if variant not in get_args(Variant):
        raise ValueError(
            f"`variant` must be one of {', '.join(get_args(Variant))}, got {variant!r}"
        )

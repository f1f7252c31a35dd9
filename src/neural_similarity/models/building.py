"""Building blocks of the networks: stages, heads, initialisation, similarities."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from neural_similarity.choices import require_least, require_positive
from neural_similarity.nn import Conv2d, Dynamic, DynamicSimilarity, SelfAttention, sharing
from neural_similarity.nn.similarity import MOST_SCALARS, check_ready, predicted_scalars
from neural_similarity.nn.text import Similarity, SimilarityName, resolve_similarity

MOST_WIDTH = 1_000
"""Largest factor on channels: tens of thousands of channels need hundreds of gigabytes."""
Layers = dict[str, nn.Module]
Convolution = Callable[..., Any]
"""Makes convolutions, or layers with `out_channels` as well."""


class ConvBlock(nn.Sequential):
    """A sequence of a convolution, batch normalisation, a 2×2 pool where a stage ends, and ReLU.

    The ReLU comes after the pool, where the map is a quarter as large: ReLU and maximum commute,
    so output and gradient are the same.
    """


def conv_block(conv: Any, *, pool: bool = False) -> ConvBlock:
    """The block of this convolution, or of another layer with `out_channels`."""
    middle = [nn.MaxPool2d(2)] if pool else []
    return ConvBlock(conv, nn.BatchNorm2d(conv.out_channels), *middle, nn.ReLU(inplace=True))


def has_pool(layer: nn.Module) -> bool:
    """Whether a layer is a block with a pool."""
    return isinstance(layer, ConvBlock) and any(isinstance(part, nn.MaxPool2d) for part in layer)


def without_pool(block: nn.Module) -> ConvBlock:
    """The block with the same layers except its pool."""
    return ConvBlock(*(layer for layer in block.children() if not isinstance(layer, nn.MaxPool2d)))


if TYPE_CHECKING:

    class NamedSequential(nn.Sequential):
        """`torch.nn.Sequential`, of whose layers checkers do not know the classes."""

        def __getattr__(self, name: str) -> Any: ...

else:
    NamedSequential = nn.Sequential


class StageSizes(NamedTuple):
    """Channels of each stage, convolutions in each, and units of the hidden layer."""

    channels: list[int]
    depths: tuple[int, ...]
    hidden: int
    attended: int = 0
    """Number of stages, from the first on, that end in self-attention."""

    def times_width(self, width: float) -> "StageSizes":
        """The same depths with `width` times the channels and units."""
        hidden = scale_channels([self.hidden], width)[0]
        return self._replace(channels=scale_channels(self.channels, width), hidden=hidden)


def build_sequential(
    layers: Layers,
    similarity: Similarity | SimilarityName | None,
    attended: Sequence[int] = (),
    convolution: Callable[..., nn.Conv2d] = nn.Conv2d,
) -> NamedSequential:
    """The network of these layers, at He's initialisation, with similarities.

    Self-attention made of `convolution` follows the first pools; `attended` lists the channels of
    their maps. Attention and similarities are added last and start as the identity, so that they
    leave the kernels and the function unchanged.
    """
    network = NamedSequential(OrderedDict(layers))
    _initialise_kernels(network)
    network = _insert_attention(network, attended, convolution)
    _give_similarities(network, similarity)
    return network


def _initialise_kernels(network: nn.Module) -> None:
    """Initialise kernels by He."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and not layer.weight.is_meta:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


def _insert_attention(
    network: NamedSequential, attended: Sequence[int], convolution: Callable[..., nn.Conv2d]
) -> NamedSequential:
    layers, stages = OrderedDict[str, nn.Module](), enumerate(attended, start=1)
    for name, layer in network.named_children():
        layers[name] = layer
        if has_pool(layer) and (found := next(stages, None)):
            stage, channels = found
            layers[f"attention{stage}"] = SelfAttention(channels, convolution=convolution)
            _initialise_kernels(layers[f"attention{stage}"])
    return NamedSequential(layers)


def _give_similarities(network: nn.Module, similarity: Similarity | SimilarityName | None) -> None:
    """Give every `ns.Conv2d` a similarity, unless too many entries of M would be predicted.

    The limit is `MOST_SCALARS` per position.
    """
    spec = resolve_similarity(similarity)
    layers = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, Conv2d) and not _predicts_too_much(spec, layer)
    }
    check_ready(spec, layers)
    with sharing():
        for layer in layers.values():
            layer.with_similarity(spec)


def _predicts_too_much(spec: Similarity | nn.Module | None, layer: Conv2d) -> bool:
    return isinstance(spec, Dynamic) and predicted_scalars(spec, layer.geometry()) > MOST_SCALARS


def set_norms(network: nn.Module, *, momentum: float, eps: float) -> nn.Module:
    """Set the momentum of batch normalisation, and its eps outside of predictors.

    Predictors have their own eps, on which their initial output depends.
    """
    dynamic = [module for module in network.modules() if isinstance(module, DynamicSimilarity)]
    inside = {part for similarity in dynamic for part in similarity.predictor.modules()}
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = momentum
            layer.eps = layer.eps if layer in inside else eps
    return network


def conv_stages(
    in_channels: int,
    channels: Sequence[int],
    depths: Sequence[int],
    convolution: Convolution = Conv2d,
) -> Layers:
    """Blocks of 3×3 convolutions, `depths` of them for every number of channels; the last pools."""
    layers: Layers = {}
    for stage, (out_channels, depth) in enumerate(zip(channels, depths, strict=True), start=1):
        for number in range(1, depth + 1):
            conv = convolution(in_channels, out_channels, 3, padding=1, bias=False)
            layers[f"conv{stage}_{number}"] = conv_block(conv, pool=number == depth)
            in_channels = out_channels
    return layers


def residual_stages(
    block: Callable[..., nn.Module],
    in_channels: int,
    channels: Sequence[int],
    depths: Sequence[int],
    *,
    expansion: int = 1,
    name: str = "layer",
) -> Layers:
    """Stages of blocks; the first block of each but the first stage halves the map."""
    layers: Layers = {}
    for stage, (width, depth) in enumerate(zip(channels, depths, strict=True), start=1):
        layers[f"{name}{stage}"] = blocks = nn.Sequential()
        for number in range(depth):
            blocks.append(block(in_channels, width, stride=2 if stage > 1 and not number else 1))
            in_channels = width * expansion
    return layers


def average_head(name: str, features: int, num_classes: int) -> Layers:
    """The average over the map, and the classifier of this name."""
    classifier = nn.Linear(features, num_classes)
    return {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), name: classifier}


def fully_connected(features: int, hidden: int, num_classes: int) -> Layers:
    """A hidden layer and the classifier."""
    return {
        "flatten": nn.Flatten(),
        "fc": nn.Linear(features, hidden, bias=False),
        "norm": nn.BatchNorm1d(hidden),
        "relu": nn.ReLU(inplace=True),
        "classifier": nn.Linear(hidden, num_classes),
    }


def pad_layer(image_size: int, multiple: int) -> Layers:
    """Zero padding for images whose size the pools do not divide evenly."""
    missing = -image_size % multiple
    before, after = missing // 2, missing - missing // 2
    return {"pad": nn.ZeroPad2d((before, after, before, after))} if missing else {}


def scale_channels(channels: Sequence[int], width: float) -> list[int]:
    """`width` times the channels, each at least 1."""
    require_positive("width", width)
    if width > MOST_WIDTH:
        raise ValueError(f"`width` must be at most {MOST_WIDTH}, got {width}")
    return [max(1, round(c * width)) for c in channels]


def check_no_similarity(similarity: Similarity | SimilarityName | None, network: str) -> None:
    """Check that `similarity` is None where layers have their own, or a dynamic kernel."""
    if similarity not in (None, "none"):
        raise ValueError(f"`similarity` must be None in {network}, got {similarity!r}")


def check_sizes(num_classes: int, in_channels: int, image_size: int, *, smallest: int = 1) -> None:
    """Check that sizes are positive and that images are large enough for the pools."""
    limits = {"num_classes": 1, "in_channels": 1, "image_size": smallest}
    values = (num_classes, in_channels, image_size)
    for (name, least), value in zip(limits.items(), values, strict=True):
        require_least(name, value, least)

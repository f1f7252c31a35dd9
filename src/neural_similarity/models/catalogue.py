"""The networks by name, and their options."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from torch import nn

from neural_similarity.choices import require_known
from neural_similarity.models.few_shot import resnet12, wrn28_10
from neural_similarity.models.plain import cnn9, cnn9_plus, cnn9_wide, cnn10, cnn10_plus, convnet4
from neural_similarity.models.resnet import resnet18, resnet34, resnet50
from neural_similarity.models.resnet_cifar import resnet20, resnet56
from neural_similarity.models.spherenet import spherenet9

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn9": cnn9,
    "cnn9_plus": cnn9_plus,
    "cnn9_wide": cnn9_wide,
    "cnn9_wide_attention": partial(cnn9_wide, self_attention=True),
    "spherenet9": spherenet9,
    "spherenet9_attention": partial(spherenet9, self_attention=True),
    "cnn10": cnn10,
    "cnn10_plus": cnn10_plus,
    "convnet4": convnet4,
    "resnet12": resnet12,
    "wrn28_10": wrn28_10,
    "resnet20": resnet20,
    "resnet56": resnet56,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
}
"""The networks by name."""
SPHERENETS = frozenset({"spherenet9", "spherenet9_attention"})
"""Networks of hyperspherical convolutions."""
WITHOUT_SIMILARITY = set(SPHERENETS)
"""Networks whose layers have their own similarity or none: their `similarity` must be None."""
CIFAR_CLASSES = 10
"""The number of classes for networks without a default: CIFAR-10's."""


def usual_sizes(name: str) -> tuple[int, int, int]:
    """Classes, channels and image size that the network called `name` is made for."""
    chosen = options(name)
    classes = signature(MODELS[name]).parameters["num_classes"].default
    return (
        classes if isinstance(classes, int) else CIFAR_CLASSES,
        chosen["in_channels"],
        chosen["image_size"],
    )


def options(name: str) -> dict[str, Any]:
    """The options of the network called `name`, with their defaults."""
    require_known("name", name, MODELS)
    parameters = signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build(name: str, num_classes: int, **chosen: Any) -> nn.Module:
    """The network called `name`; see its function for the options.

    Returns:
        The network, with new weights.

    Raises:
        ValueError: no network has that name, or it has no such option.
    """
    for option in sorted(chosen.keys() - options(name).keys()):
        raise ValueError(
            f"`{option}` is not an option of {name}, which has {', '.join(options(name))}"
        )
    return MODELS[name](num_classes, **chosen)

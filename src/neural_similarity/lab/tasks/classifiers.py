"""The classifier of a pretrained network."""

from typing import Any

from torch import nn

from neural_similarity.conversion import head_name


def require_one_classifier(model: Any, word: str, classes: int) -> None:
    """Raise a ValueError for timm's networks with a second classifier, as for distillation."""
    heads = model.get_classifier()
    heads = nn.ModuleList(heads if isinstance(heads, tuple) else [heads])
    layers = [m for m in heads.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    if len(layers) > 1:
        raise ValueError(f"`backbone` must have one classifier, got {word} with {len(layers)}")


def with_classes(model: nn.Module, classes: int) -> nn.Module:
    """The network with a classifier for this number of classes, a new one if it had another.

    Raises:
        ValueError: its last layer is neither linear nor a 1x1 convolution.
    """
    name = head_name(model)
    old = model.get_submodule(name)
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    elif isinstance(old, nn.Conv2d) and set(old.kernel_size) == {1}:
        new = nn.Conv2d(old.in_channels, classes, 1, bias=old.bias is not None)
    else:
        raise ValueError(f"`backbone` must end in a classifier, got {name!r}, {old}")
    model.set_submodule(name, new)
    return model

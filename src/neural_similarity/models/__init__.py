"""Functions that build networks; every one takes `similarity=`."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import nn

from neural_similarity.models.cnn9 import cnn9 as cnn9
from neural_similarity.models.cnn9 import cnn9_plus as cnn9_plus

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn9": cnn9, "cnn9_plus": cnn9_plus}
"""The networks by name."""


def build(name: str, num_classes: int, **options: Any) -> nn.Module:
    """The network called `name`; see its function for the options.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in MODELS:
        nearest = get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"`name` must be one of {', '.join(MODELS)}, got {name!r}; nearest: {nearest}"
        )
    return MODELS[name](num_classes, **options)

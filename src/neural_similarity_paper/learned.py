"""The parameters that a network learned besides its kernels, for records and figures."""

from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.nn import DynamicSimilarity, MaskedModule, SimilarityLayer, StaticSimilarity

MOST_NUMBERS = 2_000
"""Largest tensor that is kept: an M for each of many filters is left out."""


@torch.no_grad()
def learned(network: nn.Module) -> dict[str, dict[str, Any]]:
    """By layer: static M, D_r and the taps that D keeps, gains of dynamic M; to four digits.

    For every convolution, plain ones too, also the singular values of its folded kernel as a matrix
    of filters × (channels·taps); for a dynamic one, those of W alone.
    """
    kernels, layers = folded_kernels(network), {}
    for name, layer in network.named_modules():
        if _is_inside(name):
            continue
        similarity = layer.similarity if isinstance(layer, SimilarityLayer) else None
        facts: dict[str, Any] = {}
        if isinstance(similarity, StaticSimilarity):
            facts["m"] = _rounded(similarity.matrix())
        if isinstance(similarity, DynamicSimilarity) and similarity.gain is not None:
            facts["gains"] = _rounded(similarity.gain)
        for part in [] if similarity is None else similarity.modules():
            if isinstance(part, MaskedModule):
                facts["mask"], facts["taps"] = _rounded(part.mask), _rounded(part.kernel_shape())
        if name in kernels:
            facts["spectrum"] = _rounded(torch.linalg.svdvals(kernels[name].flatten(1).double()))
        if facts:
            layers[name] = {key: value for key, value in facts.items() if value is not None}
    return layers


def _rounded(values: Tensor) -> list[Any] | None:
    if values.numel() > MOST_NUMBERS:
        return None
    return torch.tensor(four_digits(values), dtype=torch.float64).view(values.shape).tolist()


def four_digits(values: Tensor) -> list[float]:
    """All numbers of a tensor, rounded for a file."""
    return [float(f"{value:.4g}") for value in values.flatten().tolist()]


def folded_kernels(network: nn.Module) -> dict[str, Tensor]:
    """The kernels of convolutions outside predictors, by name, with a static M folded in."""
    kernels = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not _is_inside(name):
            similarity = getattr(layer, "similarity", None)
            static = isinstance(similarity, StaticSimilarity)
            kernels[name] = similarity.fold(layer.weight) if static else layer.weight
    return kernels


def _is_inside(name: str) -> bool:
    """Whether a module is inside a similarity, as predictors are."""
    return ".similarity." in f".{name}."

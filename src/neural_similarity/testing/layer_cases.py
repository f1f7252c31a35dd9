"""Layers to check: every structure in every layer, static and predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from neural_similarity.nn import (
    LSTM,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    Dynamic,
    Linear,
    SimilarityLayer,
    SphereNet,
    Static,
)
from neural_similarity.nn.predictor import Predictor
from neural_similarity.nn.structure import Structure
from neural_similarity.nn.text import STRUCTURES as STRUCTURES
from neural_similarity.nn.text import Similarity

Make = Callable[[Similarity | None], SimilarityLayer]
LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Conv1d": (lambda s: Conv1d(4, 6, 3, padding=2, dilation=2, similarity=s), (2, 4, 7)),
    "Conv2d": (lambda s: Conv2d(4, 6, (1, 3), (2, 1), (0, 1), similarity=s), (2, 4, 5, 4)),
    "Conv2d of one channel": (lambda s: Conv2d(1, 3, 3, padding=1, similarity=s), (2, 1, 4, 5)),
    "Conv2d in groups": (lambda s: Conv2d(4, 6, 3, groups=2, similarity=s), (2, 4, 4, 5)),
    "Conv3d": (lambda s: Conv3d(2, 4, (1, 3, 1), padding="same", similarity=s), (2, 2, 2, 3, 2)),
    "ConvTranspose2d": (
        lambda s: ConvTranspose2d(4, 6, (1, 3), (1, 2), similarity=s),
        (2, 4, 3, 4),
    ),
    "Linear": (lambda s: Linear(5, 4, similarity=s), (2, 5)),
    "LSTM": (lambda s: LSTM(5, 5, batch_first=True, similarity=s), (2, 3, 5)),
}
"""Every layer as a function of its similarity, and the shape of an input."""


class NotApplicableError(Exception):
    """A law does not apply to a layer; the message says why."""


@dataclass(frozen=True)
class Case:
    """A layer to check: built by `make` in float64, from the same seed every time."""

    name: str
    make: Callable[[], SimilarityLayer]
    shape: tuple[int, ...]
    """The shape of the layer's input, batch first."""
    similarity: Similarity

    def __str__(self) -> str:
        return self.name

    def make_layer(self) -> SimilarityLayer:
        """A fresh layer.

        Raises:
            NotApplicableError: `make` raises a `ValueError`, as there is no such layer.
        """
        torch.manual_seed(0)
        try:
            return self.make().double()
        except ValueError as error:
            raise NotApplicableError(str(error)) from error

    def trained_layer(self) -> SimilarityLayer:
        """A fresh layer whose similarity is moved well away from its initial value."""
        layer = self.make_layer()
        torch.manual_seed(1)
        for name, parameter in layer.named_parameters():
            if name.endswith((".raw", ".gain")):
                parameter.data += 0.5 * torch.randn_like(parameter)
            elif name.endswith(".mask"):
                parameter.data += torch.rand_like(parameter) - 0.7
        return layer

    def random_input(self) -> Tensor:
        """Random numbers of `shape`."""
        torch.manual_seed(2)
        return torch.randn(self.shape, dtype=torch.float64)


def cases(structure: Structure, predictor: Predictor | None = None) -> tuple[Case, ...]:
    """A structure in every layer, static and predicted (by default by a small `SphereNet`).

    Returns:
        A case for each layer and kind that the structure fits.

    Raises:
        ValueError: `structure` is not a `Structure`, or `predictor` not a predictor.
    """
    if not isinstance(structure, Structure):
        raise ValueError(f"`structure` must be a Structure such as ns.Full(), got {structure!r}")
    start = "identity" if structure.zero_is_identity else "released"
    kinds: dict[str, Similarity] = {"static": Static(structure)}
    if structure.dynamic:
        kinds["dynamic"] = Dynamic(
            structure, SphereNet(hidden=3) if predictor is None else predictor, start
        )
    return tuple(
        Case(f"{kind} {name}", partial(make, similarity), shape, similarity)
        for kind, similarity in kinds.items()
        for name, (make, shape) in LAYERS.items()
    )

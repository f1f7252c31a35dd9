"""CNN-9 with every similarity, and the networks of recipes, to be trained or used."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks import oracle
from benchmarks.case import SEED, seeded
from benchmarks.subject import Placed, Subject, learn
from neural_similarity import models
from neural_similarity.choices import require_least
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.recipes.studies import CHEAPER
from neural_similarity.lab.train.run import build_network
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import SIMILARITIES, format_similarity

CLASSES, CHANNELS, SIZE = 10, 3, 32
PREDICTORS = {
    name.removeprefix("cifar10-"): RECIPES[name].similarity
    for name in ("cifar10-dynamic-dns", *CHEAPER)
}
"""Diagonal M by the predictor of the tables, and by cheaper ones."""
KNOWN = {name: spec for name, spec in SIMILARITIES.items() if spec is not None} | PREDICTORS
"""Every similarity that CNN-9 is measured with."""
PLAIN = "plain"
CHECKED = 16
"""Images that networks are checked on: enough for the statistics of batch normalisation."""


def texts(names: Iterable[str]) -> dict[str, str]:
    """The similarities of these names as they are now, every field named."""
    return {name: format_similarity(KNOWN[name], complete=True) for name in names}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and at what size networks are measured."""

    runtime: Runtime
    """Device and precision; channels last."""
    batch: int = 128
    """Images."""
    width: float = 1.0
    """Factor on the number of filters."""

    def __post_init__(self) -> None:
        require_least("batch", self.batch)

    @property
    def group(self) -> dict[str, str | int]:
        """What the rows of a comparison have in common."""
        return {"dtype": self.runtime.precision, "batch": self.batch}

    def images(self, count: int) -> Tensor:
        """Random images, placed."""
        generator = torch.Generator().manual_seed(SEED)
        images = torch.randn(count, CHANNELS, SIZE, SIZE, generator=generator)
        return self.runtime.place_images(images)

    def network(self, similarity: str | None) -> nn.Module:
        """CNN-9 whose similarities have left the identity."""
        with seeded():
            chosen = KNOWN[similarity] if similarity else None
            model = models.cnn9(CLASSES, width=self.width, similarity=chosen)
            learn(model)
        return model

    def subject(self, name: str) -> Subject:
        """The network of the similarity called `name`, or the plain one, as it is trained."""
        return self._trained(name, self.network(None if name == PLAIN else name))

    def recipe(self, name: str) -> Subject:
        """The network of the recipe called `name`, one of CIFAR-10, as it is trained."""
        recipe = RECIPES[name]
        with seeded():
            model = build_network(recipe, CLASSES, width=self.width * recipe.width)
            learn(model)
        return self._trained(name, model)

    def _trained(self, name: str, model: nn.Module) -> Subject:
        return Subject(
            name=name,
            module=Placed(model, self.runtime),
            inputs=(self.images(CHECKED),),
            oracle=oracle.network,
            separable=False,
            smooth=False,
        )

    @property
    def check_grad(self) -> Tensor:
        """Gradient of the scores, for the check."""
        generator = torch.Generator().manual_seed(SEED)
        return torch.randn(CHECKED, CLASSES, generator=generator).to(self.runtime.device)

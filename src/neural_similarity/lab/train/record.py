"""A run record: what a table is built from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a run was scored on."""

    stem: str
    """The name of the record's file, without .json."""
    correct: Tensor
    """Which test images were right, boolean; or how many queries of each task."""
    accuracies: Tensor
    """Share of right answers of each image or task; float64."""
    evaluation: Any = None
    """For a few-shot run, what was evaluated."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(Outcome):
    """A finished run of a named recipe with nothing overridden, and what it was scored on."""

    path: Path
    name: str
    budget: float
    """Share of the recipe's steps."""
    recipe: Recipe
    """Every setting, steps scaled already."""
    code: dict[str, Any]
    """Version, commits, and whether files differed from a commit."""
    environment: dict[str, Any]
    """Machine, versions, device and precision."""
    data: dict[str, Any]
    """Name and digest of the data set; how many classes, where the record says it."""
    training: dict[str, Any]
    """Summary of the training: steps, seconds, parameters."""
    summary: dict[str, Any]
    start: dict[str, Any] | None = None
    """Recipe, seed, classes and budget of the run that training started from, and SHA-256 of its
    weights, by which its own evaluations are known."""
    retrained: dict[str, Any] | None = None
    """The step that was chosen on validation classes, and how many times more images there are,
    where training was anew on both; older records do not say."""
    learned: dict[str, Any] | None = None
    """By layer, see `tasks.learned`; only of recognition, and older records have none."""

    @property
    def seed(self) -> int:
        return self.recipe.seed

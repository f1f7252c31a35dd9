"""Run records, from which tables are built."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.train.recipe import TrainingRecipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The scores of a run."""

    stem: str
    """The name of the record's file, without .json."""
    correct: Tensor
    """Whether each test image was classified correctly; or the correct queries of each task."""
    accuracies: Tensor
    """Share of correct answers for each image or task; float64."""
    evaluation: Any = None
    """The evaluation of a few-shot run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(Outcome):
    """A finished run of a named recipe without overrides, and its scores."""

    path: Path
    name: str
    budget: float
    """Share of the recipe's steps."""
    recipe: TrainingRecipe
    """All settings, with the steps already scaled."""
    code: dict[str, Any]
    """Version, commits, and whether files differed from a commit."""
    environment: dict[str, Any]
    """Machine, versions, device and precision."""
    data: dict[str, Any]
    """Name and digest of the data set; the number of classes, if the record has it."""
    training: dict[str, Any]
    """Summary of the training: steps, seconds, parameters."""
    summary: dict[str, Any]
    start: dict[str, Any] | None = None
    """Recipe, seed, classes and budget of the run that training started from, and SHA-256 of its
    weights, which identifies its own evaluations."""
    retrained: dict[str, Any] | None = None
    """If the run was retrained on validation classes too: the step that was chosen on them, and the
    ratio of the numbers of images; missing in older records."""
    learned: dict[str, Any] | None = None
    """By layer, see `tasks.learned`; for recognition only, and missing in older records."""

    @property
    def seed(self) -> int:
        return self.recipe.seed

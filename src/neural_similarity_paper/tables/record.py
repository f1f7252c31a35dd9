"""Run records, from which tables are built."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.tasks.few_shot import Evaluation
from neural_similarity.lab.train.recipe import TrainingRecipe

LOSS_RISE = 1.5
"""A training that diverged ends at least at so many times its least loss, or not at a number."""
CHANCES = 2, 3
"""A network is near chance below so many times it, and, where the loss rose, below the other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The scores of a run."""

    stem: str
    """The name of the record's file, without .json."""
    correct: Tensor
    """Whether each test image was classified correctly; or the correct queries of each task."""
    accuracies: Tensor
    """Share of correct answers for each image or task; float64."""
    evaluation: Evaluation | None = None
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
    """By layer, see `learned`; for recognition only, and missing in older records."""
    failed: bool = False
    """Whether the training failed, see `has_failed`."""

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def precision(self) -> str:
        """The precision of training, and that of the scores if it is another one.

        Older records do not name that of the scores: it was the one of training.
        """
        trained = self.environment["precision"]
        scored = self.summary.get("score_precision", trained)
        return trained if scored == trained else f"{trained} (scores: {scored})"


def has_failed(losses: Sequence[float], accuracy: float, classes: int) -> bool:
    """Whether a training diverged or left the network near chance.

    Args:
        losses: of training, in their order; a single one is of no training.
        accuracy: share of correct answers at test.
        classes: number of classes.
    """
    if len(losses) < 2:
        return False
    rose = not losses[-1] < LOSS_RISE * min(losses)
    return accuracy * classes < CHANCES[rose]

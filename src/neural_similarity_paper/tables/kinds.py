"""What a record is, and how each kind of run makes, names and reads its own."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from neural_similarity import models
from neural_similarity.conversion import fold
from neural_similarity.lab.tasks.baselines import merge_baselines
from neural_similarity.lab.tasks.classification import BY_CLASS
from neural_similarity.lab.train import Run, TrainingRecipe, unpack_correct
from neural_similarity.lab.train.files import check_fields
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import SUMMARY, checkpoint_facts, load_network, read_facts
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.learned import learned
from neural_similarity_paper.statistics import by_image
from neural_similarity_paper.tables.rows import Row

SEED_NAME = re.compile(r"-?[0-9]+")
LOSS_RISE = 1.5
"""A training that diverged ends at least at so many times its least loss, or not at a number."""
CHANCES = 2, 3
"""A network is near chance below so many times it, and, where the loss rose, below the other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A finished run of a named recipe without overrides, and its scores."""

    stem: str
    """The name of the record's file, without .json."""
    correct: Tensor
    """Whether each test image was classified correctly; or the correct queries of each task."""
    accuracies: Tensor
    """Share of correct answers for each image or task; float64."""
    evaluation: Any = None
    """The `Evaluation` of a few-shot run."""
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


@dataclass(frozen=True)
class Key:
    """What distinguishes a run from others at its budget."""

    name: str
    seed: int
    retrained: bool = False
    """Whether it is trained again on validation data as well."""

    def __str__(self) -> str:
        return f"{self.name} seed {self.seed}" + (" retrained" if self.retrained else "")


@dataclass(frozen=True)
class Wanted:
    """A record that a table asks for."""

    run: Key
    stem: str
    """The name of its file, without .json."""
    product: str = SUMMARY
    """The file in the run folder whose presence means that the run can be recorded."""
    options: tuple[str, ...] | None = None
    """Options of `nsim evaluate`, which makes that file; None if training makes it."""


class RunRecords:
    """Records of classification and adaptation, one for each run; few-shot runs override it."""

    folder: ClassVar[str] = ""
    """Folder of the records, inside the folder of all results."""
    columns: ClassVar[Mapping[str, Callable[[Sequence[Record]], str]]] = {}
    """The columns of a table, by heading, for records that differ in their seed alone; empty for
    image classification."""

    def wanted_records(self, row: Row, seed: int, count: int) -> Iterable[Wanted]:
        """The records that a row needs for a seed; few-shot runs have `count` test tasks."""
        return [Wanted(Key(row.recipe, seed), f"{seed}")]

    def outcomes_of(self, run: Any) -> dict[str, dict[str, Any]]:
        """The parts of records that only this kind of run has, by the names of their files."""
        summary = public_summary(run)
        correct = summary.pop("test_correct")
        summary.pop(BY_CLASS, None)  # A thousand numbers for ImageNet, which follow from `correct`.
        outcome = {
            "checkpoint": checkpoint_facts(run, "last"),
            "summary": summary | {"macs": _folded_macs(run)},
            "metrics": read_lines(run.metrics),
            "learned": learned(merge_baselines(load_network(run))),
            "correct": correct,
        }
        return {f"{run.recipe.seed}": outcome}

    def is_record(self, path: Path) -> bool:
        """Whether a file in a folder of records is named like one; other files are the user's."""
        return SEED_NAME.fullmatch(path.stem) is not None

    def read_outcome(self, content: dict[str, Any], recipe: TrainingRecipe) -> dict[str, Any]:
        """The outcome that `outcomes_of` gave: the first fields of `Record`."""
        right = unpack_correct(content["correct"])
        share = right.sum().item() / len(right)
        if share != content["summary"]["test_accuracy"]:
            raise ValueError(f"its images say {share}, its summary {content['summary']}")
        check_fields(content, {"summary.macs": int})
        return {"stem": f"{recipe.seed}", "correct": right, "accuracies": right.double()}

    def group_records(self, records: Sequence[Record], row: Row) -> dict[Hashable, list[Record]]:
        """Those of a recipe's records that a row shows, in groups that differ in the seed alone."""
        return {(): sorted(records, key=lambda record: record.seed)} if records else {}

    def comparable(self, ours: Record, theirs: Record) -> bool:
        """Whether two records of a seed were scored on the same images or tasks."""
        return True

    def interval(self, values: Tensor) -> Interval:
        """The interval of a mean over test images or tasks."""
        return by_image(values.tolist())


def public_summary(run: Run) -> dict[str, Any]:
    """The summary of a run without its command, which names folders of the machine."""
    return {key: value for key, value in read_facts(run.summary).items() if key != "command"}


def _folded_macs(run: Run) -> int:
    size = (run.channels, run.image_size, run.image_size)
    return models.macs(fold(merge_baselines(run.build()), dynamic="keep"), *size)

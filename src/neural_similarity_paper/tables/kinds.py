"""How the records of each kind of run are named, made, read and shown."""

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
from neural_similarity_paper.tables.record import Outcome, Record

SEED_NAME = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A record that a table's row needs for each seed."""

    stem: str
    """The name of the record's file, without .json."""
    product: str = SUMMARY
    """The file in the run folder whose presence means that the run can be recorded."""
    options: tuple[str, ...] | None = None
    """Options of `nsim evaluate`, which makes that file; None if training makes it."""
    retrained: bool = False
    """Whether the run is retrained with validation data added."""


class RunRecords:
    """Records of image classification, one for each run; other kinds of runs override it."""

    folder: ClassVar[str] = ""
    """Folder of the records, inside the folder of all results."""
    columns: ClassVar[Mapping[str, Callable[[Sequence[Record]], str]]] = {}
    """The columns of a table, by heading, for records that differ in their seed alone; empty for
    image classification."""

    def row_trials(self, seed: int, method: str, shots: int, count: int) -> Iterable[Trial]:
        """The records that a table's row needs for a seed.

        Few-shot runs evaluate `method` on `count` test tasks with `shots` labelled images a class.
        """
        return [Trial(stem=f"{seed}")]

    def outcomes_of(self, run: Any, command: str) -> dict[str, dict[str, Any]]:
        """The parts of records that only this kind of run has, by the names of their files.

        `command` is the one that repeats the run.
        """
        summary = read_facts(run.summary)
        correct = summary.pop("test_correct")
        summary.pop(BY_CLASS, None)  # A thousand numbers for ImageNet, which follow from `correct`.
        outcome = {
            "checkpoint": checkpoint_facts(run, "last"),
            "summary": summary | {"macs": _folded_macs(run), "command": command},
            "metrics": read_lines(run.metrics),
            "learned": learned(merge_baselines(load_network(run))),
            "correct": correct,
        }
        return {f"{run.recipe.seed}": outcome}

    def is_record(self, path: Path) -> bool:
        """Whether a file in a folder of records is named like one; other files are the user's."""
        return SEED_NAME.fullmatch(path.stem) is not None

    def read_outcome(self, content: dict[str, Any], recipe: TrainingRecipe) -> Outcome:
        """The outcome that `outcomes_of` gave."""
        right = unpack_correct(content["correct"])
        share = right.sum().item() / len(right)
        if share != content["summary"]["test_accuracy"]:
            raise ValueError(f"its images say {share}, its summary {content['summary']}")
        check_fields(content, {"summary.macs": int})
        return Outcome(stem=f"{recipe.seed}", correct=right, accuracies=right.double())

    def group_records(
        self, records: Sequence[Record], method: str, shots: int
    ) -> dict[Hashable, list[Record]]:
        """The records that a row shows, in groups that differ in their seed alone."""
        return {(): sorted(records, key=lambda record: record.seed)} if records else {}

    def comparable(self, ours: Record, theirs: Record) -> bool:
        """Whether two records of a seed were scored on the same images or tasks."""
        return True

    def interval(self, values: Tensor) -> Interval:
        """The interval of a mean over test images or tasks."""
        return by_image(values.tolist())


def _folded_macs(run: Run) -> int:
    size = (run.channels, run.image_size, run.image_size)
    return models.macs(fold(merge_baselines(run.build()), dynamic="keep"), *size)

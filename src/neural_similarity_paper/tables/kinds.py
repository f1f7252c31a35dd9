"""What a record is, and how each kind of run makes, names and reads its own.

A few-shot run has a record for each evaluation.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, cast, get_args

from torch import Tensor

from neural_similarity import models
from neural_similarity.conversion import fold
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.baselines import merge_baselines
from neural_similarity.lab.tasks.classification import BY_CLASS
from neural_similarity.lab.tasks.few_shot.evaluation import (
    EVALUATION_NAME,
    Evaluation,
    evaluation_name,
    read_evaluations,
)
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import Classes, FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train import Run, TrainingRecipe, unpack_correct
from neural_similarity.lab.train.files import check_fields
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import checkpoint_facts, load_network, read_facts
from neural_similarity.lab.train.statistics import Interval, by_task
from neural_similarity_paper.learned import learned
from neural_similarity_paper.statistics import by_image
from neural_similarity_paper.tables.rows import Row

LOSS_RISE = 1.5
"""A run diverged if its final loss is NaN, or at least this multiple of its minimum."""
NEAR_CHANCE = 2, 3
"""An accuracy below twice chance counts as near chance; below three times where the loss rose."""


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
        losses: of training, in their order; with a single one nothing was trained.
        accuracy: share of correct answers at test.
        classes: number of classes.
    """
    if len(losses) < 2:
        return False
    rose = not losses[-1] < LOSS_RISE * min(losses)
    return accuracy * classes < NEAR_CHANCE[rose]


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
    options: tuple[str, ...] | None = None
    """Options of `nsim evaluate`, which writes that file; None where nothing is evaluated."""


class RunRecords:
    """Records of classification and adaptation, one for each run; few-shot runs override it."""

    folder: ClassVar[str] = ""
    """Folder of the records, inside the folder of all results."""
    stems: ClassVar[re.Pattern[str]] = re.compile(r"-?[0-9]+")
    """Names of their files, without .json; files of other names are the user's."""
    columns: ClassVar[Mapping[str, Callable[[Sequence[Record]], str]]] = {}
    """The columns of a table, by heading, for records that differ in their seed alone; empty for
    image classification."""

    def wanted_records(self, row: Row, seed: int, count: int) -> Iterable[Wanted]:
        """The records that a row needs for a seed; few-shot runs have `count` test tasks."""
        return [Wanted(Key(row.recipe, seed), f"{seed}")]

    def outcomes_of(self, run: Any) -> dict[str, dict[str, Any]]:
        """The parts of records that only this kind of run has, by the names of their files."""
        summary = public_summary(run)
        correct, side = summary.pop("test_correct"), run.image_size
        folded = fold(merge_baselines(run.build()), dynamic="keep")
        summary.pop(BY_CLASS, None)  # A thousand numbers for ImageNet, which follow from `correct`.
        outcome = {
            "checkpoint": checkpoint_facts(run, "last"),
            "summary": summary | {"macs": models.macs(folded, run.channels, side, side)},
            "metrics": read_lines(run.metrics),
            "learned": learned(merge_baselines(load_network(run))),
            "correct": correct,
        }
        return {f"{run.recipe.seed}": outcome}

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


TABLE_TASKS, TASK_SEED = TaskSizes(ways=5, queries=15), 0
"""Sizes of a table's tasks, but for their shots, and the seed of their list."""


def _classes(record: Record) -> Classes:
    return cast(FewShotRecipe, record.recipe).train_on


def _start_budget(record: Record) -> float:
    return (record.start or {}).get("budget", record.budget)


def _budget_text(records: Sequence[Record]) -> str:
    """The budget of the run, and the budget of its start if that differs."""
    budget, start = records[0].budget, _start_budget(records[0])
    return f"{budget:g}" + (f" (start: {start:g})" if start != budget else "")


def _seeds_text(records: Sequence[Record]) -> str:
    """The number of seeds, their deviation from two on, and the seeds run with local changes."""
    values = [100 * record.summary["accuracy"] for record in records]
    text = f"{len(values)}" if len(values) < 2 else f"{len(values)} (σ {stdev(values):.2f})"
    changed = ", ".join(str(record.seed) for record in records if record.code["dirty"])
    return text + (f"; local changes: {changed}" if changed else "")


class EvaluationRecords(RunRecords):
    """Records of few-shot runs, one for each evaluation."""

    folder, stems = "fewshot", EVALUATION_NAME
    columns: ClassVar = {
        "parameters": lambda records: f"{records[0].summary['parameters'] / 1e3:,.1f} k",
        "trained on": lambda records: _classes(records[0]),
        "budget": _budget_text,
        "step": lambda records: f"{fmean(r.evaluation.checkpoint['step'] for r in records):,.0f}",
        "precision": lambda records: " and ".join(sorted({r.precision for r in records})),
        "batch norm": lambda records: records[0].evaluation.statistics,
        "tasks": lambda records: f"{len(records[0].correct):,}",
        "seeds": _seeds_text,
    }

    def wanted_records(self, row: Row, seed: int, count: int) -> Iterator[Wanted]:
        """The evaluations of a method: trained on training classes, and on validation classes too.

        MAML, ANIL and meta-learned NSN, whose initial classifier is learned, are trained on
        training classes alone; the paper trains static and dynamic NSN on validation classes too.
        """
        kind, sizes = METHODS[row.method], replace(TABLE_TASKS, shots=row.shots)
        facts = {"part": "test", "count": count, "seed": TASK_SEED}
        options = {"method": row.method} | asdict(sizes)
        options |= {"tasks": count, "task-seed": TASK_SEED, "part": "test"}
        words = tuple(word for name in options for word in (f"--{name}", f"{options[name]}"))
        for train_on in get_args(Classes)[: 1 if kind.fixed_ways else None]:
            stem = evaluation_name((row.method, train_on, kind.statistics, seed), sizes, facts)
            run = Key(row.recipe, seed, retrained=train_on != "train")
            yield Wanted(run, stem, words)

    def outcomes_of(self, run: FewShotRun) -> dict[str, dict[str, Any]]:
        evaluations = read_evaluations(run)
        if not evaluations:
            raise RunError(f"{run.path} has no evaluations; `nsim evaluate {run.path}` first")
        recipe, training = run.recipe, public_summary(run)
        return {
            each.file_name(recipe.train_on, recipe.seed): {"training": training} | each.to_json()
            for each in evaluations
        }

    def read_outcome(self, content: dict[str, Any], recipe: TrainingRecipe) -> dict[str, Any]:
        """The number of correct queries of each task."""
        evaluation = Evaluation.from_json(content)
        return {
            "stem": evaluation.file_name(cast(FewShotRecipe, recipe).train_on, recipe.seed),
            "correct": evaluation.correct,
            "accuracies": evaluation.accuracies,
            "evaluation": evaluation,
        }

    def group_records(self, records: Sequence[Record], row: Row) -> dict[Hashable, list[Record]]:
        """Evaluations on test classes, by training classes, statistics, tasks and start."""
        wanted = row.method, replace(TABLE_TASKS, shots=row.shots), "test"
        # Of those that differ in the number of tasks alone.
        longest: dict[tuple[Hashable, ...], Record] = {}
        for record in sorted(records, key=lambda record: len(record.correct)):
            evaluation, tasks = record.evaluation, record.evaluation.tasks
            if (evaluation.method, evaluation.sizes, tasks["part"]) == wanted:
                facts = _classes(record), evaluation.statistics, tasks["seed"], record.seed
                longest[facts] = record
        groups: dict[Hashable, list[Record]] = {}
        for (*facts, _, _), record in longest.items():
            digest = record.evaluation.tasks["digest"]
            groups.setdefault((*facts, digest, _start_budget(record)), []).append(record)
        return groups

    def comparable(self, ours: Record, theirs: Record) -> bool:
        """Whether both have the same classes and tasks, and `theirs` the usual statistics.

        Lists with the same seed and data share their first tasks.
        """
        mine, other = ours.evaluation, theirs.evaluation
        same_length = len(ours.correct) == len(theirs.correct)
        return (
            other.statistics == "running"
            and _classes(ours) == _classes(theirs)
            and ours.data["digest"] == theirs.data["digest"]
            and all(mine.tasks[fact] == other.tasks[fact] for fact in ("part", "seed"))
            and (mine.tasks["digest"] == other.tasks["digest"]) == same_length
        )

    def interval(self, values: Tensor) -> Interval:
        return by_task(values)

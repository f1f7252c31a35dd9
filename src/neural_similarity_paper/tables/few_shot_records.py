"""Records of few-shot runs: one for each evaluation."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, cast, get_args

from torch import Tensor

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.few_shot.evaluation import (
    EVALUATIONS,
    Evaluation,
    evaluation_name,
    is_evaluation,
    read_evaluations,
)
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import Classes, FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train import TrainingRecipe
from neural_similarity.lab.train.statistics import Interval, by_task
from neural_similarity_paper.tables.kinds import (
    Key,
    Record,
    RunRecords,
    Wanted,
    public_summary,
)
from neural_similarity_paper.tables.rows import Row

TABLE_WAYS, TABLE_QUERIES, TASK_SEED = 5, 15, 0
"""Classes, and queries of each, of a table's tasks, and the seed of their list."""


def table_sizes(shots: int) -> TaskSizes:
    """The sizes of a table's tasks."""
    return TaskSizes(ways=TABLE_WAYS, shots=shots, queries=TABLE_QUERIES)


def evaluate_options(method: str, sizes: TaskSizes, count: int, seed: int, part: str) -> list[str]:
    """The options of `nsim evaluate` for a method on tasks."""
    numbers = {"ways": sizes.ways, "shots": sizes.shots, "queries": sizes.queries}
    numbers |= {"tasks": count, "task-seed": seed}
    options = [word for name, number in numbers.items() for word in (f"--{name}", f"{number}")]
    return ["--method", method, *options, "--part", part]


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

    folder = "fewshot"
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
        kind, sizes = METHODS[row.method], table_sizes(row.shots)
        facts = {"part": "test", "count": count, "seed": TASK_SEED}
        options = tuple(evaluate_options(row.method, sizes, count, TASK_SEED, "test"))
        for train_on in get_args(Classes)[: 1 if kind.fixed_ways else None]:
            stem = evaluation_name((row.method, train_on, kind.statistics, seed), sizes, facts)
            run = Key(row.recipe, seed, retrained=train_on != "train")
            yield Wanted(run, stem, f"{EVALUATIONS}/{stem}.json", options)

    def outcomes_of(self, run: FewShotRun) -> dict[str, dict[str, Any]]:
        evaluations = read_evaluations(run)
        if not evaluations:
            raise RunError(f"{run.path} has no evaluations; `nsim evaluate {run.path}` first")
        recipe, training = run.recipe, public_summary(run)
        return {
            each.file_name(recipe.train_on, recipe.seed): {"training": training} | each.to_json()
            for each in evaluations
        }

    def is_record(self, path: Path) -> bool:
        return is_evaluation(path)

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
        groups: dict[Hashable, list[Record]] = {}
        for record in _longest(records):
            evaluation = record.evaluation
            tasks = evaluation.method, evaluation.sizes, evaluation.tasks["part"]
            if tasks == (row.method, table_sizes(row.shots), "test"):
                digest = evaluation.tasks["digest"]
                facts = evaluation.statistics, digest, _start_budget(record)
                groups.setdefault((_classes(record), *facts), []).append(record)
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


def _longest(records: Iterable[Record]) -> list[Record]:
    """Of records that differ only in the number of tasks, the one with the most."""
    longest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: len(record.correct)):
        evaluation = record.evaluation
        countless = replace(evaluation, tasks=evaluation.tasks | {"count": 0})
        longest[countless.file_name(_classes(record), record.seed)] = record
    return list(longest.values())

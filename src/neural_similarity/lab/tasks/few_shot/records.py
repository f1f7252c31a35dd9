"""Records of few-shot runs: which ones a table asks for, and how it groups and shows them."""

import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, cast, get_args

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.few_shot.evaluation import (
    EVALUATIONS,
    Evaluation,
    evaluation_name,
    read_evaluations,
)
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import Classes, FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train.record import Outcome, Record
from neural_similarity.lab.train.run import read_facts
from neural_similarity.lab.train.runtime import SCORE_PRECISION
from neural_similarity.lab.train.task import Trial

WAYS, QUERIES, TASK_SEED = 5, 15, 0
"""Classes, and queries of each, of a table's tasks, and the seed of their list."""


def wanted_trials(seed: int, method: str, shots: int, count: int) -> Iterator[Trial]:
    """The evaluations of a method: trained on training classes, and on validation classes too.

    MAML, ANIL and meta-learned NSN, whose initial classifier is learned, are trained on training
    classes alone; the paper trains static and dynamic NSN on validation classes as well.
    """
    kind, sizes = METHODS[method], table_sizes(shots)
    facts = {"part": "test", "count": count, "seed": TASK_SEED}
    for train_on in get_args(Classes)[: 1 if kind.fixed_ways else None]:
        stem = evaluation_name((method, train_on, kind.statistics, seed), sizes, facts)
        yield Trial(
            stem=stem,
            product=f"{EVALUATIONS}/{stem}.json",
            options=tuple(evaluate_options(method, sizes, count, TASK_SEED, "test")),
            retrained=train_on != "train",
        )


def table_sizes(shots: int) -> TaskSizes:
    """The sizes of a table's tasks."""
    return TaskSizes(ways=WAYS, shots=shots, queries=QUERIES)


def evaluate_options(method: str, sizes: TaskSizes, count: int, seed: int, part: str) -> list[str]:
    """The options of `nsim evaluate` for a method on tasks."""
    numbers = {"ways": sizes.ways, "shots": sizes.shots, "queries": sizes.queries}
    numbers |= {"tasks": count, "task-seed": seed}
    options = [word for name, number in numbers.items() for word in (f"--{name}", f"{number}")]
    return ["--method", method, *options, "--part", part]


def recorded_outcomes(run: FewShotRun, command: str) -> dict[str, dict[str, Any]]:
    """The contents of records of a run's evaluations, by the names of their files."""
    evaluations = read_evaluations(run)
    if not evaluations:
        raise RunError(f"{run.path} has no evaluations; `nsim evaluate {run.path}` first")
    recipe, training = run.recipe, read_facts(run.summary) | {"command": command}
    return {
        one.file_name(recipe.train_on, recipe.seed): {"training": training}
        | _evaluation_json(run, one)
        for one in evaluations
    }


def _evaluation_json(run: FewShotRun, one: Evaluation) -> dict[str, Any]:
    facts = (one.tasks[fact] for fact in ("count", "seed", "part"))
    words = ["nsim", "evaluate", f"runs/{run.recipe.folder_name(run.name)}"]
    words += evaluate_options(one.method, one.sizes, *facts)
    if one.statistics != METHODS[one.method].statistics:
        words += ["--batch-norm", one.statistics]
    if (scored := one.summary.get("score_precision", run.precision)) != SCORE_PRECISION:
        words += ["--precision", scored]
    return one.to_json() | {"summary": one.summary | {"command": shlex.join(words)}}


def read_outcome(content: dict[str, Any], recipe: FewShotRecipe) -> Outcome:
    """The number of correct queries of each task."""
    evaluation = Evaluation.from_json(content)
    return Outcome(
        stem=evaluation.file_name(recipe.train_on, recipe.seed),
        correct=evaluation.correct,
        accuracies=evaluation.accuracies,
        evaluation=evaluation,
    )


def grouped_records(
    records: Sequence[Record], method: str, shots: int
) -> dict[Hashable, list[Record]]:
    """Evaluations on test classes, grouped by training classes, statistics, tasks and start."""
    groups: dict[Hashable, list[Record]] = {}
    for one in _longest(records):
        of = _evaluation(one)
        if (of.method, of.sizes, of.tasks["part"]) == (method, table_sizes(shots), "test"):
            key = (_classes(one), of.statistics, of.tasks["digest"], _start_budget(one))
            groups.setdefault(key, []).append(one)
    return groups


def _longest(records: Iterable[Record]) -> list[Record]:
    """Of records that differ only in the number of tasks, the one with the most."""
    longest: dict[str, Record] = {}
    for one in sorted(records, key=lambda one: len(one.correct)):
        of = _evaluation(one)
        longest[replace(of, tasks=of.tasks | {"count": 0}).file_name(_classes(one), one.seed)] = one
    return list(longest.values())


def comparable_records(ours: Record, theirs: Record) -> bool:
    """Whether both have the same classes and tasks, and `theirs` the usual statistics.

    Lists with the same seed and data share their first tasks.
    """
    mine, other = _evaluation(ours), _evaluation(theirs)
    same_length = len(ours.correct) == len(theirs.correct)
    return (
        other.statistics == "running"
        and _classes(ours) == _classes(theirs)
        and ours.data["digest"] == theirs.data["digest"]
        and all(mine.tasks[fact] == other.tasks[fact] for fact in ("part", "seed"))
        and (mine.tasks["digest"] == other.tasks["digest"]) == same_length
    )


def record_facts(records: Sequence[Record]) -> dict[str, Any]:
    """Training classes, statistics and number of tasks."""
    first = records[0]
    return {
        "trained_on": _classes(first),
        "batch_norm": _evaluation(first).statistics,
        "tasks": len(first.correct),
    }


def _evaluation(record: Record) -> Evaluation:
    """The evaluation, which every few-shot record has."""
    return cast(Evaluation, record.evaluation)


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
    values = [100 * one.summary["accuracy"] for one in records]
    text = f"{len(values)}" if len(values) < 2 else f"{len(values)} (σ {stdev(values):.2f})"
    changed = ", ".join(str(one.seed) for one in records if one.code["dirty"])
    return text + (f"; local changes: {changed}" if changed else "")


RECORD_COLUMNS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "parameters": lambda records: f"{records[0].summary['parameters'] / 1e3:,.1f} k",
    "trained on": lambda records: _classes(records[0]),
    "budget": _budget_text,
    "step": lambda records: f"{fmean(_evaluation(r).checkpoint['step'] for r in records):,.0f}",
    "precision": lambda records: " and ".join(sorted({r.precision for r in records})),
    "batch norm": lambda records: _evaluation(records[0]).statistics,
    "tasks": lambda records: f"{len(records[0].correct):,}",
    "seeds": _seeds_text,
}
"""The columns of a table, for evaluations that differ in their seed alone."""

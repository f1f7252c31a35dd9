"""Which runs a table lacks, in which order they go, and how long they take."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from neural_similarity.choices import require_count
from neural_similarity.lab.data.prefetch import cores
from neural_similarity.lab.paper.pace import Pace, paces
from neural_similarity.lab.paper.records import budget_name, overridden, read_records, record_path
from neural_similarity.lab.paper.tables import Table
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Run, RunError, choose_runtime, read_run
from neural_similarity.lab.train.checkpoint import checkpoints, step_of
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import scaled
from neural_similarity.lab.train.runtime import PrecisionChoice

State = Literal["new", "interrupted", "finished"]
"""How far a run is that has no record."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run whose record is missing."""

    name: str
    """Name of the recipe."""
    budget: float
    """Share of its steps."""
    seed: int
    """Seed."""
    folder: Path
    """The run folder, there already unless `state` is "new"."""
    record: Path
    """The record to write."""
    state: State
    """Whether the run is to begin, to go on, or only to be recorded."""
    precision: PrecisionChoice
    """What to compute in, if it is to begin; "auto" leaves it to the recipe."""
    steps: int
    """Steps of the whole run."""
    done: int
    """Steps that the newest checkpoint has behind it."""
    seconds: float
    """Time that the remaining steps take."""
    rough: bool
    """Whether that is by multiplications, and not by earlier runs of the recipe."""

    @property
    def title(self) -> str:
        """Recipe and seed."""
        return f"{self.name} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done for a table."""

    tasks: tuple[Task, ...]
    """Missing runs in the order in which they go."""
    recorded: int
    """Runs that have a record."""
    without_recipe: tuple[str, ...]
    """Names of rows that cannot be run."""


def make_plan(
    table: Table,
    *,
    seeds: Sequence[int],
    budget: float,
    results: Path,
    runs: Path,
    only: Sequence[str] = (),
    precision: PrecisionChoice = "auto",
) -> Plan:
    """The runs of a table that have no record: all rows of a seed, then those of the next.

    Args:
        table: a table of the paper.
        seeds: seeds of every row.
        budget: share of every recipe's steps.
        results: folder of the records.
        runs: folder of the run folders.
        only: patterns such as "cifar10-*"; rows whose recipe matches none are left out.
        precision: of runs that are to begin: "auto" (what is faster here), "bf16" or "fp32".

    Raises:
        ValueError: a pattern matches no row, or a record cannot be used.
        RunError: a run folder that would be used holds another run.
    """
    names = chosen(table, only)
    ready = [name for name in names if name in RECIPES]
    recorded = {name: read_records(results, name, budget) for name in ready}
    missing = [(name, seed) for seed in seeds for name in ready if seed not in recorded[name]]
    pace = paces(dict(missing), results, precision)
    tasks = (
        _task(name, budget, seed, (results, runs), precision, pace[name]) for name, seed in missing
    )
    return Plan(
        tasks=tuple(tasks),
        recorded=len(ready) * len(seeds) - len(missing),
        without_recipe=tuple(name for name in names if name not in RECIPES),
    )


def chosen(table: Table, only: Sequence[str]) -> list[str]:
    """The recipes of a table that match one of the patterns `only`; all if there is none.

    Raises:
        ValueError: a pattern matches no recipe.
    """
    return matching([row.recipe for row in table.rows], only)


def matching(recipes: Iterable[str], only: Sequence[str]) -> list[str]:
    """The recipes that match one of the patterns `only`, each once; all if there is no pattern.

    Raises:
        ValueError: a pattern matches no recipe.
    """
    names = list(dict.fromkeys(recipes))
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"`only` must match a recipe of the table ({', '.join(names)}), got {pattern!r}"
            )
    return [name for name in names if not only or any(fnmatchcase(name, p) for p in only)]


def run_folder(runs: Path, name: str, budget: float, seed: int) -> Path:
    """The folder in which a table's run takes place."""
    return runs / f"{name}-{budget_name(budget)}-seed{seed}"


def side_by_side() -> int:
    """How many runs go at a time: two on a CPU of several cores, else one."""
    on_cpu = choose_runtime(precision="fp32").device.type == "cpu"
    return min(2, cores()) if on_cpu else 1


def makespan(tasks: Iterable[Task], jobs: int) -> float:
    """Seconds until all tasks are done, `jobs` at a time.

    Tasks begin in their order, each as soon as a place is free.

    Raises:
        ValueError: `jobs` is below 1.
    """
    require_count("jobs", jobs)
    ends = [0.0] * jobs
    for task in tasks:
        heapq.heapreplace(ends, ends[0] + task.seconds)
    return max(ends)


def _task(
    name: str,
    budget: float,
    seed: int,
    folders: tuple[Path, Path],
    precision: PrecisionChoice,
    pace: Pace,
) -> Task:
    results, runs = folders
    folder = run_folder(runs, name, budget, seed)
    steps = scaled(RECIPES[name], budget).steps
    state, done = "new", 0
    if folder.exists():
        run = read_run(folder)
        require_same(run, name, budget, seed, overridden(name, budget, run.recipe))
        state = "finished" if run.summary.exists() else "interrupted"
        done = steps if state == "finished" else _steps_saved(run)
        pace = _own_pace(run) or pace
    return Task(
        name=name,
        budget=budget,
        seed=seed,
        folder=folder,
        record=record_path(results, name, budget, seed),
        state=state,
        precision=precision,
        steps=steps,
        done=done,
        seconds=pace.seconds * (steps - done),
        rough=pace.rough,
    )


def require_same(run: Run, name: str, budget: float, seed: int, changed: Sequence[str]) -> None:
    """Refuse a folder that holds another run than the one it is named after.

    Args:
        run: what it holds.
        name: of the recipe.
        budget: share of its steps.
        seed: of the run.
        changed: fields in which the run is not one of the recipe.
    """
    if (run.name, run.budget, run.recipe.seed) != (name, budget, seed):
        changed = ["recipe, budget or seed"]
    if changed:
        raise RunError(
            f"{run.path} holds another run than {name} with seed {seed} at budget {budget:g}: it "
            f"differs in {', '.join(changed)}; move it away or name another folder with --runs"
        )


def _steps_saved(run: Run) -> int:
    saved = checkpoints(run.checkpoints)
    return step_of(saved[-1]) if saved else 0


def _own_pace(run: Run) -> Pace | None:
    """By the lines of an interrupted run."""
    lines = [line for line in read_lines(run.metrics) if "seconds" in line]
    return Pace(lines[-1]["seconds"] / lines[-1]["step"]) if lines else None

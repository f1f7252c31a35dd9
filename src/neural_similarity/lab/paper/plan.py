"""Planning the runs that a table lacks: their order, and how long they take."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

from neural_similarity.choices import require_count
from neural_similarity.lab.data.decoding import cores
from neural_similarity.lab.paper import few_shot_table
from neural_similarity.lab.paper.pace import THREADS, Pace, evaluation_pace, paces
from neural_similarity.lab.paper.recording import evaluate_words, overridden, start_option
from neural_similarity.lab.paper.records import (
    budget_name,
    read_placed,
    records_folder,
)
from neural_similarity.lab.paper.tables import Table
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import open_run
from neural_similarity.lab.tasks.few_shot.evaluation import EVALUATIONS, evaluation_name
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import Classes
from neural_similarity.lab.train import Run, RunError, choose_runtime
from neural_similarity.lab.train.checkpoint import checkpoints, step_of
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import scaled
from neural_similarity.lab.train.run import SUMMARY
from neural_similarity.lab.train.runtime import PrecisionChoice

State = Literal["new", "interrupted", "finished"]
"""The state of a job without a record."""
TASK_SEED = 0
TRAIN_ALONE: tuple[Classes, ...] = ("train",)
"""The classes of MAML, ANIL and meta-learned NSN, whose classifier has a learned start; the paper
trains static and dynamic NSN on validation classes as well."""


@dataclass(frozen=True)
class Key:
    """What distinguishes a run from others at its budget."""

    name: str
    seed: int
    train_on: Classes = "train"
    """Base classes, of few-shot learning."""

    def __str__(self) -> str:
        classes = "" if self.train_on == "train" else f" on {self.train_on}"
        return f"{self.name} seed {self.seed}{classes}"


@dataclass(frozen=True)
class Wanted:
    """A record that a table asks for."""

    run: Key
    method: str | None = None
    """For few-shot learning, the method that is evaluated."""
    shots: int = 0
    """For few-shot learning, the shots of its tasks."""

    def __str__(self) -> str:
        if self.method is None:
            return f"{self.run}"
        shots = "1 shot" if self.shots == 1 else f"{self.shots} shots"
        return (
            f"{self.run.name} seed {self.run.seed} on {self.run.train_on}: {self.method}, {shots}"
        )


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What all runs of a plan share."""

    budget: float
    """Share of every recipe's steps."""
    results: Path
    runs: Path
    """Folder of the run folders."""
    precision: PrecisionChoice = "auto"
    """Precision of new runs: "auto" (the faster one here), "bf16" or "fp32"."""
    tasks: int = 2_000
    """Number of test tasks of an evaluation."""

    def folder(self, key: Key) -> Path:
        """The folder in which a run takes place."""
        suffix = "" if key.train_on == "train" else "-all"
        return self.runs / f"{key.name}-{budget_name(self.budget)}-seed{key.seed}{suffix}"

    def record(self, one: Wanted) -> Path:
        return records_folder(self.results, one.run.name, self.budget) / self.file(one)

    def file(self, one: Wanted) -> str:
        """The file name of a record, and of an evaluation by the method's own statistics."""
        key = one.run
        if one.method is None:
            return f"{key.seed}.json"
        facts = {"part": "test", "count": self.tasks, "seed": TASK_SEED}
        of = one.method, key.train_on, METHODS[one.method].statistics, key.seed
        return f"{evaluation_name(of, few_shot_table.sizes(one.shots), facts)}.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A process of a plan: it trains a run, or evaluates one."""

    title: str
    folder: Path
    words: tuple[str, ...]
    """The arguments of `nsim` that begin it."""
    after: tuple[str, ...] = ()
    """Titles of jobs that must be done first."""
    product: Path
    """The file that exists once it is done."""
    record: Path | None
    """The record to write when it is done, if any."""
    state: State
    """Whether to begin it, to resume it, or only to record it."""
    steps: int
    """Steps of the whole run, or tasks of the evaluation."""
    done: int = 0
    """Steps that are done at the newest checkpoint."""
    seconds: float
    """Time that the remaining steps take."""
    rough: bool
    """Whether that is estimated from multiplications, not from earlier runs of the recipe."""

    @property
    def unit(self) -> str:
        return "step" if self.words[0] == "train" else "task"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs that a table needs."""

    jobs: tuple[Job, ...]
    """In the order in which they begin."""
    lacking: tuple[Wanted, ...]
    recorded: int


def wanted_runs(table: Table, seeds: Sequence[int], only: Sequence[str] = ()) -> list[Wanted]:
    """The records of a table of recognition: all rows of a seed, then those of the next.

    Args:
        table: a table of the paper; its rows without a recipe are left out.
        seeds: seeds of every row.
        only: patterns such as "cifar10-*"; rows whose recipe matches none are left out.

    Raises:
        ValueError: a pattern matches no row.
    """
    names = [name for name in chosen(table, only) if name in RECIPES]
    return [Wanted(Key(name, seed)) for seed in seeds for name in names]


def wanted_evaluations(
    seeds: Sequence[int],
    shots: Sequence[int],
    only: Sequence[str] = (),
    data: str = few_shot_table.MINI,
) -> list[Wanted]:
    """All of Table 6: its rows by seed, shots and, but for those of `TRAIN_ALONE`, classes.

    Args:
        seeds: of every run.
        shots: of the tasks, those of the table or some of them.
        only: patterns such as "mini-cnn4*"; recipes that match none are left out.
        data: what the table is on.

    Raises:
        ValueError: a pattern matches no recipe, or the table has no tasks of so many shots.
    """
    if wrong := [count for count in shots if count not in few_shot_table.SHOTS]:
        raise ValueError(f"`shots` must be among {few_shot_table.SHOTS}, got {wrong[0]}")
    places = [
        (row.recipe_for(count), row.method, count)
        for row in few_shot_table.rows_on(data)
        for count in shots
    ]
    names = matching([name for name, *_ in places], only)
    return [
        Wanted(Key(name, seed, train_on), method, count)
        for seed in seeds
        for name, method, count in places
        if name in names
        for train_on in (TRAIN_ALONE if METHODS[method].fixed_ways else get_args(Classes))
    ]


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


def make_plan(wanted: Sequence[Wanted], scope: Scope) -> Plan:
    """The runs to train and to evaluate for what has no record, in the order of `wanted`.

    Raises:
        ValueError: a record cannot be used.
        RunError: a run folder that would be used holds another run.
    """
    lacking = [one for one in wanted if not _recorded(one, scope)]
    pace = paces({one.run.name for one in lacking}, scope.results, scope.precision)
    records = {one.run: scope.record(one) for one in lacking if one.method is None}
    jobs: dict[str, Job] = {}
    for one in lacking:
        for key in _needed(one, scope):
            if f"{key}" not in jobs and (job := _training(key, records.get(key), scope, pace)):
                jobs[job.title] = job
        if one.method is not None:
            job = _evaluation(one, one.method, scope)
            jobs[job.title] = job
    ordered = [_after(job, jobs) for job in jobs.values()]
    return Plan(jobs=tuple(ordered), lacking=tuple(lacking), recorded=len(wanted) - len(lacking))


def side_by_side() -> int:
    """How many runs to do at a time: two on a CPU of several cores, else one."""
    on_cpu = choose_runtime(precision="fp32").device.type == "cpu"
    return min(2, cores()) if on_cpu else 1


def makespan(jobs: Iterable[Job], places: int) -> float:
    """Seconds until all jobs are done, `places` at a time, whatever they wait for.

    Jobs begin in their order, each as soon as a place is free.

    Raises:
        ValueError: `places` is below 1.
    """
    require_count("jobs", places)
    jobs = list(jobs)
    ends = [0.0] * min(places, len(jobs) + 1)
    for job in jobs:
        heapq.heapreplace(ends, ends[0] + job.seconds)
    return max(ends)


def require_same(run: Run, key: Key, budget: float) -> None:
    """Check that a folder holds the run that it is named after."""
    changed = overridden(run)
    if getattr(run.recipe, "train_on", "train") != key.train_on:
        changed += ["train_on"]
    if (run.name, run.budget, run.recipe.seed) != (key.name, budget, key.seed):
        changed = ["recipe, budget or seed"]
    if changed:
        raise RunError(
            f"{run.path} holds another run than {key.name} with seed {key.seed} at budget "
            f"{budget:g}: it differs in {', '.join(changed)}; move it away or name another folder "
            "with --runs"
        )


def _recorded(one: Wanted, scope: Scope) -> bool:
    path = scope.record(one)
    return path.exists() and bool(read_placed(path, one.run.name, scope.budget))


def _before(key: Key) -> list[Key]:
    """The runs that a run builds on: its start, and what it retrains."""
    starts = [Key(STARTS[key.name], key.seed, key.train_on)] if key.name in STARTS else []
    return starts if key.train_on == "train" else [*starts, Key(key.name, key.seed)]


def _needed(one: Wanted, scope: Scope) -> list[Key]:
    """The runs that a record needs, its own last.

    What a run is built on is not needed any more once it has begun.
    """

    def visit(key: Key) -> Iterator[Key]:
        for before in () if scope.folder(key).exists() else _before(key):
            yield from visit(before)
        yield key

    return list(dict.fromkeys(visit(one.run)))


def _training(key: Key, record: Path | None, scope: Scope, pace: dict[str, Pace]) -> Job | None:
    """The job that trains a run; None where the run is finished and needs no record."""
    folder, recipe = scope.folder(key), scaled(RECIPES[key.name], scope.budget)
    speed = pace.get(key.name) or paces([key.name], scope.results, scope.precision)[key.name]
    state, done = "new", 0
    steps = recipe.steps
    if folder.exists():
        run = open_run(folder)
        require_same(run, key, scope.budget)
        steps = run.recipe.steps
        state = "finished" if run.summary.exists() else "interrupted"
        done = steps if state == "finished" else _steps_saved(run)
        speed = _own_pace(run) or speed
    if state == "finished" and record is None:
        return None
    return Job(
        title=f"{key}",
        folder=folder,
        words=tuple(_words(key, scope)),
        after=tuple(f"{before}" for before in _before(key)),
        product=folder / SUMMARY,
        record=record,
        state=state,
        steps=steps,
        done=done,
        seconds=speed.seconds * (steps - done),
        rough=speed.rough,
    )


def _words(key: Key, scope: Scope) -> Iterator[str]:
    """The arguments of `nsim` that begin a run."""
    yield "train"
    if key.train_on == "train":
        yield from (key.name, "--budget", repr(scope.budget), "--seed", f"{key.seed}")
        yield from ("--threads", f"{THREADS}")
        if scope.precision != "auto":
            yield from ("--precision", scope.precision)
    else:
        yield from ("--retrain", f"{scope.folder(Key(key.name, key.seed))}")
    if key.name in STARTS:
        before = scope.folder(Key(STARTS[key.name], key.seed, key.train_on))
        yield from (start_option(key.name), f"{before}")
    yield from ("--out", f"{scope.folder(key)}")


def _evaluation(one: Wanted, method: str, scope: Scope) -> Job:
    folder = scope.folder(one.run)
    product = folder / EVALUATIONS / scope.file(one)
    pace = evaluation_pace(one.run.name, method, scope.results)
    state: State = "finished" if product.exists() else "new"
    words = evaluate_words(
        f"{folder}", method, few_shot_table.sizes(one.shots), scope.tasks, TASK_SEED, "test"
    )
    return Job(
        title=f"{one}",
        folder=folder,
        words=tuple(words),
        after=(f"{one.run}",),
        product=product,
        record=scope.record(one),
        state=state,
        steps=scope.tasks,
        seconds=0.0 if state == "finished" else pace.seconds * scope.tasks,
        rough=pace.rough,
    )


def _after(job: Job, jobs: dict[str, Job]) -> Job:
    """The job, waiting only for jobs of the plan."""
    return replace(job, after=tuple(title for title in job.after if title in jobs))


def _steps_saved(run: Run) -> int:
    saved = checkpoints(run.checkpoints)
    return step_of(saved[-1]) if saved else 0


def _own_pace(run: Run) -> Pace | None:
    """The pace from the metrics of an interrupted run."""
    lines = [line for line in read_lines(run.metrics) if "seconds" in line]
    return Pace(lines[-1]["seconds"] / lines[-1]["step"]) if lines else None

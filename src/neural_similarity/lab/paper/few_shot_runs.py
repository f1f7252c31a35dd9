"""Running what Table 6 lacks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import get_args

from neural_similarity.lab import data
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.paper import few_shot_table
from neural_similarity.lab.paper.few_shot_evaluation import evaluate_run
from neural_similarity.lab.paper.few_shot_records import (
    EVALUATIONS,
    evaluation_name,
    overridden,
    read_placed,
    record_few_shot,
    records_folder,
)
from neural_similarity.lab.paper.plan import matching, require_same, run_folder
from neural_similarity.lab.recipes import FEW_SHOT_RECIPES
from neural_similarity.lab.recipes.few_shot import STARTS
from neural_similarity.lab.tasks.few_shot import session
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import Classes
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train import read_run
from neural_similarity.lab.train.files import locked
from neural_similarity.lab.train.run import SUMMARY

RunKey = tuple[str, int, Classes]
"""Recipe, seed and classes."""
TASK_SEED = 0
TRAIN_ALONE: tuple[Classes, ...] = ("train",)
"""The classes of MAML, ANIL and meta-learned NSN, whose classifier has a learned start; the paper
trains static and dynamic NSN on validation classes as well."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An evaluation that Table 6 has a line for."""

    name: str
    """Recipe of the run."""
    seed: int
    """Its seed."""
    train_on: Classes
    """Its classes."""
    method: str
    """What is evaluated."""
    shots: int
    """Of the tasks."""

    @property
    def title(self) -> str:
        """In words."""
        shots = "1 shot" if self.shots == 1 else f"{self.shots} shots"
        return f"{self.name} seed {self.seed} on {self.train_on}: {self.method}, {shots}"


def wanted_evaluations(
    seeds: Sequence[int], shots: Sequence[int], only: Sequence[str] = ()
) -> list[Wanted]:
    """All of Table 6: its rows by seed, shots and, but for those of `TRAIN_ALONE`, classes.

    Args:
        seeds: of every run.
        shots: of the tasks, those of the table or some of them.
        only: patterns such as "mini-cnn4*"; recipes that match none are left out.

    Raises:
        ValueError: a pattern matches no recipe, or the table has no tasks of so many shots.
    """
    if wrong := [count for count in shots if count not in few_shot_table.SHOTS]:
        raise ValueError(f"`shots` must be among {few_shot_table.SHOTS}, got {wrong[0]}")
    places = [
        (row.recipe_for(count), row.method, count)
        for row in chain(*few_shot_table.PANELS.values())
        for count in shots
    ]
    names = matching([name for name, *_ in places], only)
    return [
        Wanted(name=name, seed=seed, train_on=train_on, method=method, shots=count)
        for seed in seeds
        for name, method, count in places
        if name in names
        for train_on in (TRAIN_ALONE if METHODS[method].fixed_ways else get_args(Classes))
    ]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Trains, evaluates and records what is wanted; whatever is there already is used."""

    budget: float
    """Share of every recipe's steps."""
    tasks: int
    """Number of test tasks."""
    results: Path
    """Folder of the records."""
    runs: Path
    """Folder of the run folders."""
    data_root: Path
    """Folder of the data sets."""
    device: str = "auto"
    """auto, cpu or cuda."""
    processes: int = 1
    """How many evaluate, on the CPU."""

    def lacking(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Those without a record.

        Raises:
            ValueError: a record is damaged or no longer of its recipe.
        """
        return [one for one in wanted if not self._recorded(one)]

    def _recorded(self, one: Wanted) -> bool:
        path = records_folder(self.results, one.name, self.budget) / self._file(one)
        return path.exists() and bool(read_placed(path, one.name, self.budget))

    def needed(self, one: Wanted) -> list[RunKey]:
        """The runs that an evaluation takes, its own last.

        What a run is built on is not needed any more once it has begun.
        """

        def visit(key: RunKey) -> Iterator[RunKey]:
            name, seed, train_on = key
            for before in () if self._folder(*key).exists() else _before(name, train_on):
                yield from visit((before[0], seed, before[1]))
            yield key

        return list(dict.fromkeys(visit((one.name, one.seed, one.train_on))))

    def trainings(self, wanted: Iterable[Wanted]) -> list[Path]:
        """The run folders that have to be trained for these, or trained to the end, in order."""
        folders = (self._folder(*key) for one in wanted for key in self.needed(one))
        return list(dict.fromkeys(path for path in folders if not (path / SUMMARY).exists()))

    def check(self, one: Wanted, progress: Progress | None = None) -> None:
        """Refuse what the data cannot be evaluated for, if anything has to be trained for it.

        Args:
            one: what is wanted.
            progress: told how many images are decoded, where that has to be done.

        Raises:
            ValueError: there are too few classes, or images of one, for the test tasks.
        """
        if not self.trainings([one]):
            return
        recipe = FEW_SHOT_RECIPES[one.name]
        size = recipe.image_size
        split = data.load_split(recipe.dataset, self.data_root, image_size=size, progress=progress)
        session.check_tasks(split, "test", _sizes(one.shots))

    def complete(self, one: Wanted, progress: Progress | None = None) -> list[Path]:
        """Train and evaluate what is not there yet, and write the run's records.

        Raises:
            Interrupted: a signal came while training; the next call goes on.
            RunError: a run folder that would be used holds another run.
        """
        run = self.run(one.name, one.seed, one.train_on)
        with _alone(run.path):
            if not (run.path / EVALUATIONS / self._file(one)).exists():
                split = session.load_data(run, self.data_root)
                drawn = {"seed": TASK_SEED, "data": run.digest, "part": "test"}
                tasks = draw_tasks(split.test, _sizes(one.shots), self.tasks, **drawn)
                options = {"device": self.device, "processes": self.processes}
                evaluate_run(run, split, tasks, method=one.method, **options, progress=progress)
            return record_few_shot(run, self.results)

    def run(self, name: str, seed: int, train_on: Classes) -> FewShotRun:
        """The finished run, and before it those that it builds on."""
        options = {"data_root": self.data_root, "device": self.device}
        folder = self._folder(name, seed, train_on)
        if folder.exists():
            with _alone(folder):
                run = read_run(folder, FewShotRun)
                other = [] if run.recipe.train_on == train_on else ["train_on"]
                require_same(run, name, self.budget, seed, overridden(run) + other)
                return session.resume(folder, **options)
        before = {found: self.run(found[0], seed, found[1]) for found in _before(name, train_on)}
        start = str(before[STARTS[name], train_on].path) if name in STARTS else None
        with _alone(folder):
            if train_on != "train":
                return session.retrain(before[name, "train"], out=folder, start=start, **options)
            recipe = replace(FEW_SHOT_RECIPES[name], seed=seed, start=start)
            return session.train(recipe, name=name, budget=self.budget, out=folder, **options)

    def _folder(self, name: str, seed: int, train_on: Classes) -> Path:
        folder = run_folder(self.runs, name, self.budget, seed)
        return folder if train_on == "train" else folder.with_name(f"{folder.name}-all")

    def _file(self, one: Wanted) -> str:
        """The evaluation's file, by the method's own statistics."""
        facts = {"part": "test", "count": self.tasks, "seed": TASK_SEED}
        of = one.method, one.train_on, METHODS[one.method].statistics, one.seed
        return f"{evaluation_name(*of, _sizes(one.shots), facts)}.json"


def _before(name: str, train_on: Classes) -> list[tuple[str, Classes]]:
    """Recipes and classes of the runs that one builds on: where it starts, what it retrains."""
    starts: list[tuple[str, Classes]] = [(STARTS[name], train_on)] if name in STARTS else []
    return starts if train_on == "train" else [*starts, (name, "train")]


def _alone(folder: Path) -> AbstractContextManager[object]:
    """A context that refuses a run folder on which another process works, by a `RunError`."""
    lock = folder.with_name(f"{folder.name}.lock")
    return locked(lock, f"another process works on {folder} already")


def _sizes(shots: int) -> TaskSizes:
    """Those of the table's tasks."""
    return TaskSizes(ways=few_shot_table.WAYS, shots=shots, queries=few_shot_table.QUERIES)

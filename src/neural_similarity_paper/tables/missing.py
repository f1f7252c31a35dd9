"""What a table lacks, as commands: a line a run, in stages where one run starts from another.

How long their training takes is told by the records of their recipes.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import open_run
from neural_similarity.lab.tasks.few_shot.evaluation import EVALUATIONS
from neural_similarity.lab.train import Run, RunError
from neural_similarity.lab.train.recipe import scale_recipe
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts
from neural_similarity.lab.train.runtime import PrecisionChoice
from neural_similarity_paper.tables.kinds import Key, Wanted
from neural_similarity_paper.tables.records import (
    budget_folders,
    budget_name,
    kind_of,
    overridden_fields,
    read_placed,
    read_record,
    record_files,
    records_folder,
)
from neural_similarity_paper.tables.rows import Row

THREADS = 1
"""Threads of a run: a second one gains little beside a second process, and stalls where cores are
shared."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What all runs of a table share."""

    budget: float = 1.0
    """Factor on steps and drops, the same for all rows; below 1 a reduced schedule."""
    results: Path = Path("results")
    """Folder of the run records."""
    data: Path = Path("data")
    """Folder of the data sets."""
    runs: Path = Path("runs")
    """Folder of the run folders, RECIPE-BUDGET-seedSEED[-all], and of their logs."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps or xpu."""
    precision: PrecisionChoice = "auto"
    """Precision of new runs: the faster one here, or that of the other records."""

    def run_folder(self, key: Key) -> Path:
        suffix = "-all" if key.retrained else ""
        return self.runs / f"{key.name}-{budget_name(self.budget)}-seed{key.seed}{suffix}"

    def record_path(self, wanted: Wanted) -> Path:
        folder = records_folder(self.results, wanted.run.name, self.budget)
        return folder / f"{wanted.stem}.json"

    @property
    def place_options(self) -> list[str]:
        device = [] if self.device == "auto" else ["--device", self.device]
        return ["--data", f"{self.data}", *device]


@dataclass(frozen=True, kw_only=True)
class Line:
    """The commands that a run still needs, after those of other lines."""

    run: Key
    folder: Path
    commands: list[list[str]]
    """Words after `nsim`."""
    records: tuple[Path, ...]
    """What exists in the end."""
    after: tuple[Key, ...]
    """Runs of lines that must be done before."""
    stage: int
    """1, or one more than the largest of those."""

    def __str__(self) -> str:
        return " && ".join(shlex.join(["nsim", *words]) for words in self.commands)


def wanted_records(rows: Iterable[Row], seeds: Sequence[int], count: int = 2_000) -> list[Wanted]:
    """The records of rows, on `count` test tasks, seed by seed."""
    chosen = list(rows)
    wanted = (
        each
        for seed in seeds
        for row in chosen
        for each in kind_of(RECIPES[row.recipe]).wanted_records(row, seed, count)
    )
    return list(dict.fromkeys(wanted))


def missing_lines(wanted: Iterable[Wanted], scope: Scope) -> list[Line]:
    """The lines of the runs that records lack, each after those that it starts from.

    Raises:
        ValueError: a record cannot be used.
        RunError: a run folder that would be used holds another run.
    """
    missing: dict[Key, list[Wanted]] = {}
    for record in wanted:
        if (path := scope.record_path(record)).exists():
            read_placed(path, record.run.name, scope.budget)
        else:
            missing.setdefault(record.run, []).append(record)
    lines: dict[Key, Line | None] = {}

    def add_line(key: Key) -> Line | None:
        """The line of a run, added after those of the runs that it builds on."""
        if key not in lines:
            before = [line for each in _runs_before(key, scope) if (line := add_line(each))]
            records = missing.get(key, [])
            commands = _remaining_commands(key, records, scope)
            line = Line(
                run=key,
                folder=scope.run_folder(key),
                commands=commands,
                records=tuple(map(scope.record_path, records)),
                after=tuple(line.run for line in before),
                stage=1 + max((line.stage for line in before), default=0),
            )
            lines[key] = line if commands else None
        return lines[key]

    for key in missing:
        add_line(key)
    return [line for line in lines.values() if line]


def _runs_before(key: Key, scope: Scope) -> list[Key]:
    """The runs that a run builds on, its start and what it retrains, unless it has begun."""
    if scope.run_folder(key).exists():
        return []
    starts = [Key(STARTS[key.name], key.seed, key.retrained)] if key.name in STARTS else []
    return [*starts, Key(key.name, key.seed)] if key.retrained else starts


def _remaining_commands(key: Key, wanted: list[Wanted], scope: Scope) -> list[list[str]]:
    """What a run still needs."""
    folder, commands = scope.run_folder(key), list[list[str]]()
    if not folder.exists():
        commands.append([*_train_words(key, scope), *scope.place_options])
    else:
        run = open_run(folder)
        require_same_run(run, key, scope.budget)
        if not run.summary.exists():
            commands.append(["train", "--resume", f"{folder}", *scope.place_options])
    for record in wanted:
        evaluation = folder / EVALUATIONS / f"{record.stem}.json"
        if record.options is not None and not evaluation.exists():
            commands.append(["evaluate", f"{folder}", *record.options, *scope.place_options])
    if wanted:
        commands.append(["record", f"{folder}", "--results", f"{scope.results}"])
    return commands


def _train_words(key: Key, scope: Scope) -> Iterator[str]:
    """The words after `nsim` that begin a run."""
    yield "train"
    if key.retrained:
        yield from ("--retrain", f"{scope.run_folder(Key(key.name, key.seed))}")
    else:
        yield from (key.name, "--budget", repr(scope.budget), "--seed", f"{key.seed}")
        yield from ("--threads", f"{THREADS}")
        if scope.precision != "auto":
            yield from ("--precision", scope.precision)
    if key.name in STARTS:
        before = scope.run_folder(Key(STARTS[key.name], key.seed, key.retrained))
        yield from (f"--{RECIPES[key.name].START}", f"{before}")
    yield from ("--out", f"{scope.run_folder(key)}")


def require_same_run(run: Run, key: Key, budget: float) -> None:
    """Check that a folder holds the run that it is named after."""
    changed = overridden_fields(run)
    chosen = read_facts(run.path / ENVIRONMENT).get("retrained")
    if (chosen is not None) != key.retrained:
        changed += ["whether it is retrained"]
    if (run.name, run.budget, run.recipe.seed) != (key.name, budget, key.seed):
        changed = ["recipe, budget or seed"]
    if changed:
        raise RunError(
            f"{run.path} holds another run than {key.name} with seed {key.seed} at budget "
            f"{budget:g}: it differs in {', '.join(changed)}; move it away or name another folder "
            "with --runs"
        )


def training_seconds(lines: Iterable[Line], scope: Scope, device: str) -> tuple[float, int]:
    """Seconds that runs train one after another, whole, and the number of runs without a forecast.

    An update takes the median of the recipe's records on CPUs where `device` is "cpu", else on
    GPUs: whatever their make, so that the forecast tells an evening from a week, no more.
    """
    known, unknown = 0.0, 0
    for line in lines:
        if line.commands[0][0] != "train":
            continue
        name = line.run.name
        folders = budget_folders(scope.results, name)
        records = [read_record(path) for folder in folders for path in record_files(folder, name)]
        paces = [
            record.training["seconds"] / record.training["steps"]
            for record in records
            if (record.environment["device"] == "cpu") == (device == "cpu")
        ]
        known += scale_recipe(RECIPES[name], scope.budget).steps * median(paces) if paces else 0.0
        unknown += not paces
    return known, unknown

"""Trials of ways of adaptation: choosing rates on held-out images, and sheets that keep runs.

A sheet is a file of runs that one process fills; each is kept at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.environment import checkout_commit, describe_environment
from neural_similarity.lab.train.files import check_fields, hold_lock, read_result, write_result
from neural_similarity.lab.train.runtime import cpu_threads
from neural_similarity_paper.tables.records import code_of, machine_of

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Trial(NamedTuple):
    """A training run of a way under a change, by the seed that draws its images."""

    way: str
    rates: tuple[float, ...]
    """Of the groups of its parameters: a new head, M, all else; 0 is by curvature."""
    change: str
    draw: int

    def __str__(self) -> str:
        return f"{self.way} {self.rates_text} {self.change} {self.draw}"

    @property
    def rates_text(self) -> str:
        """The rates, joined by +."""
        return "+".join(f"{rate:g}" for rate in self.rates)


class SearchPlace(NamedTuple):
    """Where rates are chosen: all rates with the first draw, the best two with all draws."""

    changes: tuple[str, ...]
    draws: tuple[int, ...]
    first: tuple[float, ...]
    """Rates of `GRID` to begin with; it goes on until the best one has neighbours."""


def choose_rate(
    way: str, place: SearchPlace, others: tuple[float, ...], score: Callable[[Trial], float]
) -> float:
    """The better of a way's two best rates over all draws; of equals the smaller.

    Args:
        way: its name.
        place: where the rates are compared.
        others: rates of the other groups of parameters, which come first.
        score: the accuracy of a trial on held-out images.
    """

    def rank(rates: Iterable[float], draws: Sequence[int]) -> list[float]:
        means = {
            rate: fmean(
                score(Trial(way, (*others, rate), change, draw))
                for change in place.changes
                for draw in draws
            )
            for rate in rates
        }
        return sorted(means, key=lambda rate: (-means[rate], rate))

    rates, first = [*place.first], place.draws[:1]
    while True:
        ranked = rank(rates, first)
        at = GRID.index(ranked[0])
        beside = [rate for rate in GRID[max(at - 1, 0) : at + 2] if rate not in rates]
        if not beside:
            return rank(ranked[:2], place.draws)[0]
        rates += beside


ReportLine = Callable[[str], None]
SCORED = {"accuracy": float | int, "score_precision": str | None}
TRAINED = SCORED | {"score_precision": str, "trained": int}
"""Types of what tables show of runs, see `check_fields`."""
STATISTICS = ("new", "backbone")
"""Normalisation by statistics of the new images, or by the backbone's."""


@dataclass
class Sheet:
    """A file of runs, written anew whenever one is added."""

    path: Path
    facts: dict[str, Any]
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def score(self, trial: object) -> float:
        """What a run is judged by, its accuracy or ratio in dB.

        Raises:
            KeyError: the trial has not run.
        """
        run = self.runs[str(trial)]
        return run["accuracy" if "accuracy" in run else "psnr"]

    def run(
        self, trial: Any, run_trial: Callable[[Any], dict[str, Any]], report: ReportLine
    ) -> float:
        """The score of a trial, which runs and is kept at once if the sheet lacks it."""
        if str(trial) not in self.runs:
            self.runs[str(trial)] = run_trial(trial) | {"commit": checkout_commit()}
            self.write()
            report(f"{self.path.stem}: {trial}: {self.score(trial):.4g}")
        return self.score(trial)

    def write(self) -> None:
        """Write the file."""
        write_result(self.path, self.facts | {"runs": self.runs})


def read_sheet(path: Path, fields: Mapping[str, Any] = TRAINED) -> Sheet:
    """The runs in a file, each with these fields; none where there is no file.

    Raises:
        ValueError: it is damaged.
    """
    if not path.exists():
        return Sheet(path, {})

    def parse(content: dict[str, Any]) -> Sheet:
        sheet = Sheet(path, content, content.pop("runs"))
        if sheet.facts.get("statistics", "new") not in STATISTICS:
            raise ValueError(f"`statistics` is {sheet.facts['statistics']!r:.80}")
        for run in sheet.runs.values():
            check_fields(run, fields)
        return sheet

    return read_result(path, "a sheet of runs", parse)


def open_sheet(path: Path, fields: Mapping[str, Any] = TRAINED, **facts: Any) -> Sheet:
    """The file's runs, or an empty sheet of these facts, the code and the machine.

    Raises:
        ValueError: the file is damaged, or its facts are others.
    """
    if path.exists():
        sheet = read_sheet(path, fields)
        for name, value in facts.items():
            if sheet.facts.get(name) != value:
                raise ValueError(f"{path} is of another {name}, {sheet.facts.get(name)!r:.80}")
        return sheet
    environment = describe_environment(cpu_runtime())
    del environment["precision"]  # That of the runs, which some studies have in float32.
    return Sheet(
        path, facts | {"code": code_of(environment), "environment": machine_of(environment)}
    )


@contextmanager
def filling_alone(folder: Path) -> Iterator[None]:
    """One thread and one process that fills a folder of sheets.

    A process that is stopped goes on where it was. Another one must not run beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / "lock", f"another process fills {folder}"), cpu_threads(1):
        yield


def cpu_runtime() -> Runtime:
    """The CPU, training in bfloat16: a run takes two thirds of its time in float32."""
    return choose_runtime("cpu", "bf16", True)

"""What the project set out to reach, beside what was found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import few_shot, loops
from benchmarks.plots import SWEEPS, nanoseconds, peak
from benchmarks.ratios import Values, ratios
from benchmarks.report import Report, Row
from neural_similarity.ops import BACKENDS

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Target:
    """A limit on what a benchmark finds."""

    text: str
    """What is limited."""
    bench: str
    """Which benchmark finds it."""
    limit: float
    """At most, or at least, this."""
    values: Values
    """All that was found of it; the worst counts."""
    least: bool = False
    """Whether more is better."""
    unit: str = ""
    """Of the numbers."""

    def line(self, report: Report | None) -> tuple[str, str, str, str]:
        """Text, limit, what was found and whether that is enough."""
        sign = "≥" if self.least else "≤"
        wanted = f"{sign} {self.limit:g}{self.unit}"
        found = [] if report is None else list(self.values(report))
        if not found:
            return self.text, wanted, "", "not measured"
        best, worst = (max, min) if self.least else (min, max)
        reached = worst(found) >= self.limit if self.least else worst(found) <= self.limit
        ends = dict.fromkeys(f"{value(found):.3g}{self.unit}" for value in (best, worst))
        return self.text, wanted, " to ".join(ends), "reached" if reached else "**not reached**"


def _saved(kind: str) -> Values:
    def values(report: Report) -> Iterator[float]:
        for row in report.rows:
            ours = row.name.removeprefix("ours, ") in BACKENDS
            wanted = {"similarity": kind, "channels": 32, "dtype": "fp32"}
            if ours and wanted.items() <= row.group.items() and "saved_bytes" in row.costs:
                yield row.costs["saved_bytes"] / FLOAT_BYTES

    return values


def _ratios(wanted: Callable[[str], bool]) -> Values:
    def values(report: Report) -> Iterator[float]:
        for row in report.rows:
            if wanted(row.name):
                yield from (timing.ratio for timing in row.times.values())

    return values


def _speed(ours: str, what: str) -> Values:
    """How fast ours is in percent of the baseline; `what` is in its group."""

    def values(report: Report) -> Iterator[float]:
        for row in report.rows:
            if row.name == ours and row.group.get("what") == what and not row.baseline:
                yield from (100 / timing.ratio for timing in row.times.values())

    return values


def _tasks_per_second(report: Report) -> Iterator[float]:
    for row in report.rows:
        if row.name == few_shot.OURS and row.group["what"] == few_shot.KEPT:
            if few_shot.SPEED in row.costs:
                yield row.costs[few_shot.SPEED]


def _growth(value: Callable[[Row], float | None]) -> Values:
    """How much more a position costs at one size than at the size before it."""

    def values(report: Report) -> Iterator[float]:
        lines: dict[tuple, list[tuple[int, float]]] = {}
        for row in report.rows:
            sweep = str(row.group["sweep"])
            varied = SWEEPS[sweep]
            line = (sweep, row.name, row.group["dtype"], row.group["threads"])
            if (cost := value(row)) and not row.baseline:
                lines.setdefault(line, []).append((int(row.group[varied]), cost))
        for points in lines.values():
            for (_, before), (_, after) in pairwise(sorted(points)):
                yield after / before

    return values


TARGETS = (
    *(Target(bench="operators", **ratio._asdict()) for ratio in ratios()),
    Target(
        text="saved for backward at C = O = 32, dynamic diagonal, fp32",
        bench="operators",
        limit=45,
        unit=" floats/position",
        values=_saved("diagonal"),
    ),
    Target(
        text="the same, dynamic full",
        bench="operators",
        limit=120,
        unit=" floats/position",
        values=_saved("full"),
    ),
    Target(
        text="training step of CNN-9, dynamic diagonal (predictor without batch norm) ÷ plain",
        bench="training",
        limit=4.2,
        values=_ratios(lambda name: name in ("dynamic-diagonal", "dynamic-dns")),
    ),
    Target(
        text="training step of CNN-9, static ÷ plain",
        bench="training",
        limit=1.05,
        values=_ratios(lambda name: name.startswith("static")),
    ),
    Target(
        text="images/s of `nsim train` in percent of a bare loop's, the same network",
        bench="training",
        limit=95,
        unit=" %",
        least=True,
        values=_speed(loops.OURS, loops.WHAT),
    ),
    Target(
        text="inference of CNN-9, folded ÷ plain",
        bench="inference",
        limit=1.03,
        values=_ratios(lambda name: name.endswith("folded")),
    ),
    Target(
        text="time of a position at one size ÷ at the size before: linear, no cliff",
        bench="scaling",
        limit=1.5,
        values=_growth(nanoseconds),
    ),
    Target(
        text="peak memory of a position, likewise",
        bench="scaling",
        limit=1.5,
        values=_growth(peak),
    ),
    Target(
        text="tasks/s of second-order MAML in percent of `higher`'s",
        bench="fewshot",
        limit=95,
        unit=" %",
        least=True,
        values=_speed(few_shot.OURS, few_shot.META),
    ),
    Target(
        text="tasks/s of ProtoNet on kept features",
        bench="fewshot",
        limit=500,
        least=True,
        values=_tasks_per_second,
    ),
)
"""What is aimed at. Growth by half as much again counts as a cliff."""

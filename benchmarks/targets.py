"""What the project set out to reach, in targets.json, beside what was found."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, by_group
from benchmarks.subjects import BASELINE
from neural_similarity.files import read_json

SWEEPS = {"by batch": "batch", "by size": "size"}
"""What grows, by the name of a sweep."""
GROWING: dict[str, Callable[[Row], float | None]] = {
    "ns a position, forward + backward": lambda row: 1e9 * row.times["forward + backward"].seconds,
    "peak bytes a position": lambda row: row.costs.get("peak_bytes"),
}
"""What grows with a sweep, times positions, by its label."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A limit on what a benchmark finds: ratios of times, a cost, or how one grows."""

    bench: str
    text: str
    limit: str
    """At most ("≤ 2.5") or at least ("≥ 95 %") this, with its unit."""
    rows: str = ".*"
    """A pattern of names."""
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of their groups, by key."""
    over: str = ""
    """The row whose times the others' are divided by."""
    time: str | None = None
    """Which times; all where there is none."""
    per: str | None = None
    """A cost by whose ratio the ratio of times is divided."""
    cost: str | None = None
    """A cost, or "seconds": the times themselves."""
    growth: str | None = None
    """What grows: the worst of a step to the next size counts; half as much again is a cliff."""
    scale: float = 1.0

    def line(self, report: Report | None) -> tuple[str, str, str, str]:
        """Text, limit, what was found and whether that is enough."""
        sign, number, *unit = self.limit.split(" ")
        found = sorted(self._found(report), reverse=sign == "≥") if report else []
        if not found:
            return self.text, self.limit, "", "not measured"
        best, worst = found[0], found[-1]
        reached = worst <= float(number) if sign == "≤" else worst >= float(number)
        ends = dict.fromkeys(" ".join([f"{value:.3g}", *unit]) for value in (best, worst))
        return self.text, self.limit, " to ".join(ends), "reached" if reached else "**not reached**"

    def _found(self, report: Report) -> Iterator[float]:
        if self.growth:
            yield from _steps(report, self.growth)
            return
        for rows in by_group(report.rows).values():
            for row in rows:
                fits = (row.group.get(key) in values for key, values in self.where.items())
                if re.fullmatch(self.rows, row.name) and all(fits):
                    found = self._costs(row) if self.cost else self._ratios(row, rows)
                    yield from (self.scale * value for value in found)

    def _costs(self, row: Row) -> Iterator[float]:
        if self.cost == "seconds":
            yield from (t.seconds for what, t in row.times.items() if self.time in (what, None))
        elif self.cost in row.costs:
            yield row.costs[self.cost]

    def _ratios(self, row: Row, rows: Sequence[Row]) -> Iterator[float]:
        for other in rows:
            for what in row.times.keys() & other.times.keys():
                if other.name == self.over and self.time in (what, None):
                    more = row.costs[self.per] / other.costs[self.per] if self.per else 1.0
                    yield row.times[what].ratio / other.times[what].ratio / more


def _steps(report: Report, label: str) -> Iterator[float]:
    """How much more a position costs at one size than at the size before it."""
    for sweep in SWEEPS:
        for name, points in growth(report, sweep, label).items():
            if not name.startswith(BASELINE):
                yield from (after / before for (_, before), (_, after) in pairwise(points))


def growth(report: Report, sweep: str, label: str) -> dict[str, list[tuple[int, float]]]:
    """What a position costs at the sizes of a sweep, by what was measured."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in report.rows:
        cost = GROWING[label](row) if row.group["sweep"] == sweep and row.times else None
        if cost is not None:
            name = f"{row.name}, {row.group['dtype']}, threads {row.group['threads']}"
            positions = int(row.group["batch"]) * int(row.group["size"]) ** 2
            point = int(row.group[SWEEPS[sweep]]), cost / positions
            lines.setdefault(name, []).append(point)
    return {name: sorted(points) for name, points in lines.items()}


TARGETS = [Target(**one) for one in read_json(Path(__file__).with_suffix(".json"))]

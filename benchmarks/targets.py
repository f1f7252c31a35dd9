"""What the project set out to reach, in targets.json, beside what was found."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, by_group
from neural_similarity.files import read_json


@dataclass(frozen=True, kw_only=True)
class Target:
    """A limit on what a benchmark finds: ratios of times, or a cost."""

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


TARGETS = [Target(**one) for one in read_json(Path(__file__).with_suffix(".json"))]

"""What a benchmark found: values, a file, and tables in Markdown."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Timing
from neural_similarity.files import read_json, write_json
from neural_similarity_paper.tables.costs import machine_name, timing_doubt
from neural_similarity_paper.tables.markdown import markdown_rows

COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "test_error": ("test error, %", "{:.2f}".format),
    "images_per_second": ("images/s", "{:,.0f}".format),
    "host_seconds": ("host, ms", lambda value: milliseconds(value)),
    "saved_bytes": ("saved, bytes/position", "{:,.0f}".format),
    "peak_bytes": ("peak, MiB", lambda value: f"{value / 2**20:,.1f}"),
    "frames": ("Python frames", "{:,.0f}".format),
    "export_seconds": ("export, s", "{:.1f}".format),
    "macs": ("MMACs/image", lambda value: f"{value / 1e6:,.2f}"),
}
"""Heading and format of every cost."""
Group = dict[str, str | int]
SIZES = ("channels", "size", "batch")
"""Keys of a group that are sizes; the others name what kind of thing is measured."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found of one subject."""

    group: Group
    """What it has in common with the rows that it is compared with: dtype, batch, sizes."""
    name: str
    baseline: bool = False
    """Whether the others are compared with it."""
    problem: str | None = None
    wrong: bool = False
    """Whether that is because its result is wrong."""
    error: float | None = None
    """Of its output and gradients."""
    times: dict[str, Timing] = field(default_factory=dict)
    """By what was timed."""
    costs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a benchmark found."""

    bench: str
    environment: dict[str, Any]
    quick: bool
    """Whether it only tried out the command."""
    others: float | None
    """Cores busy with other processes meanwhile."""
    rows: tuple[Row, ...]

    @property
    def spread(self) -> float:
        """The widest quartiles that a baseline's times have, over their median."""
        timings = [timing for row in self.rows if row.baseline for timing in row.times.values()]
        return max((timing.spread for timing in timings), default=0.0)

    @property
    def noise(self) -> str | None:
        """Why its times are not to be relied on, or None."""
        return timing_doubt(self.quick, self.others, self.spread)

    @property
    def machine(self) -> str:
        return machine_name(self.environment)


def write_report(report: Report, folder: Path) -> Path:
    """Write a report to `folder`/BENCH.json."""
    path = folder / f"{report.bench}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(report))
    return path


def read_report(path: Path) -> Report:
    """The report that `write_report` wrote.

    Raises:
        ValueError: the file is not a report.
    """
    try:
        content = read_json(path)
        rows = [
            Row(**row | {"times": {name: Timing(**t) for name, t in row["times"].items()}})
            for row in content["rows"]
        ]
        return Report(**content | {"rows": tuple(rows)})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a benchmark's report: {error!r}") from error


def by_group(rows: Iterable[Row], without: Collection[str] = ()) -> dict[str, list[Row]]:
    """The rows by what they have in common, in the order of their first.

    Rows of which only the sizes `without` differ come together.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        group = {name: value for name, value in row.group.items() if name not in without}
        found.setdefault(group_title(group), []).append(row)
    return found


def group_title(group: Group) -> str:
    """A group in words, such as "bf16, batch 32, channels 64"."""
    words = (
        value if isinstance(value, str) else f"{name} {value}" for name, value in group.items()
    )
    return ", ".join(words)


def to_markdown(report: Report) -> str:
    """Every comparison as a table, after what makes the numbers doubtful."""
    parts = [f"**{report.noise}**"] if report.noise else []
    return "\n\n".join(parts + comparison_tables(report)) + "\n"


def comparison_tables(report: Report) -> list[str]:
    """A heading and a table for every group."""
    parts = []
    for words, rows in by_group(report.rows).items():
        times = list(dict.fromkeys(name for row in rows for name in row.times))
        costs = [name for name in COSTS if any(name in row.costs for row in rows)]
        baseline = next((row.name for row in rows if row.baseline), "")
        head = ["", *(text for name in times for text in (f"{name}, ms", f"÷ {baseline}"))]
        head += [COSTS[name][0] for name in costs] + ["error"]
        lines = [_line(row, times, costs) for row in rows]
        parts += [f"### {words}", markdown_rows(head, *lines)]
    return parts


def _line(row: Row, times: Sequence[str], costs: Sequence[str]) -> Sequence[str]:
    if row.problem:
        return [row.name, row.problem, *[""] * (2 * len(times) + len(costs))]
    cells = [row.name]
    for name in times:
        timing = row.times.get(name)
        cells += [milliseconds(timing.seconds), _ratio(timing)] if timing else ["", ""]
    cells += [COSTS[name][1](row.costs[name]) if name in row.costs else "" for name in costs]
    return [*cells, f"{row.error:.0e}" if row.error else "0"]


def milliseconds(seconds: float) -> str:
    """Two decimals, and of what is shorter than one three digits."""
    value = 1e3 * seconds
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def _ratio(timing: Timing) -> str:
    """A ratio and its interval."""
    if timing.low == timing.high == 1:
        return "1"
    return f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]"

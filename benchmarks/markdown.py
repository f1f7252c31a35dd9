"""A report as Markdown, for the terminal and for the documentation."""

from collections.abc import Callable, Iterable, Sequence

from benchmarks.report import Report, Row, grouped, title
from benchmarks.timing import Timing

COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "images_per_second": ("images/s", "{:,.0f}".format),
    "tasks_per_second": (
        "tasks/s",
        lambda value: f"{value:,.3g}" if value < 10 else f"{value:,.0f}",
    ),
    "saved_bytes": ("saved, bytes/position", "{:,.0f}".format),
    "peak_bytes": ("peak, MiB", lambda value: f"{value / 2**20:,.1f}"),
    "macs": ("MMACs/image", lambda value: f"{value / 1e6:,.2f}"),
}
"""Heading and number, by the name of a cost."""
Line = Sequence[str]


def to_markdown(report: Report) -> str:
    """Every comparison as a table, after what makes the numbers doubtful."""
    parts = [f"**{report.noise}**"] if report.noise else []
    for group in grouped(report.rows):
        parts += [f"### {title(group[0].group)}", comparison(group)]
    return "\n\n".join(parts) + "\n"


def comparison(rows: Sequence[Row]) -> str:
    """The table of one group."""
    times = list(dict.fromkeys(name for row in rows for name in row.times))
    costs = [name for name in COSTS if any(name in row.costs for row in rows)]
    baseline = next((row.name for row in rows if row.baseline), "")
    head = ["", *(text for name in times for text in (f"{name}, ms", f"÷ {baseline}"))]
    head += [COSTS[name][0] for name in costs] + ["error"]
    return table(head, (_line(row, times, costs) for row in rows))


def table(head: Line, lines: Iterable[Line]) -> str:
    """Cells as a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def ratio(timing: Timing) -> str:
    """A ratio and its interval."""
    if timing.low == timing.high == 1:
        return "1"
    return f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]"


def _line(row: Row, times: Line, costs: Line) -> Line:
    if row.problem:
        return [row.name, row.problem, *[""] * (2 * len(times) + len(costs))]
    cells = [row.name]
    for name in times:
        timing = row.times.get(name)
        cells += ["", ""] if timing is None else [f"{1e3 * timing.seconds:,.2f}", ratio(timing)]
    cells += [COSTS[name][1](row.costs[name]) if name in row.costs else "" for name in costs]
    return [*cells, f"{row.error:.0e}" if row.error else "0"]

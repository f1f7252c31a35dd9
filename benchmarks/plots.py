"""Reports as pictures: ratios to the baseline, and how time and memory grow with size."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, split

MARKS = "os^vDP*X<>"
COLOURS = 10
SWEEPS = {"by batch": "batch", "by size": "size"}
"""What grows, by the name of a sweep."""


def draw(report: Report, path: Path) -> None:
    """Write a report as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    (_draw_growth if report.bench == "scaling" else _draw_ratios)(figure, report)
    words = [f"python -m benchmarks {report.bench}: {report.machine}"]
    figure.suptitle("\n".join(words + ([report.noise.upper()] if report.noise else [])))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_ratios(figure: Any, report: Report) -> None:
    """Every ratio with its interval: a panel for every dtype and similarity."""
    panels = split(report.rows)
    columns = list(dict.fromkeys(name for row in report.rows for name in row.times)) or ["time"]
    heights = [1 + len({row.name for row in rows}) for rows in panels.values()]
    figure.set_size_inches(6 * len(columns) + 2, 0.35 * sum(heights) + 0.9 * len(panels) + 0.8)
    grid = figure.subplots(len(panels), len(columns), squeeze=False, height_ratios=heights)
    for line, (words, rows) in zip(grid, panels.items(), strict=True):
        for axes, column in zip(line, columns, strict=True):
            _draw_panel(axes, rows, column)
            axes.set_title(f"{words}: {column}", fontsize=9)


def _draw_panel(axes: Any, rows: Sequence[Row], column: str) -> None:
    """A line a name, a mark a size."""
    names = list(dict.fromkeys(row.name for row in rows))
    varied = [key for key in rows[0].group if len({row.group[key] for row in rows}) > 1]
    labels = [", ".join(f"{key} {row.group[key]}" for key in varied) for row in rows]
    sizes = list(dict.fromkeys(labels))
    for row, label in zip(rows, labels, strict=True):
        if column not in row.times:
            continue
        timing, place = row.times[column], sizes.index(label)
        y = names.index(row.name) + 0.6 * (place + 0.5) / len(sizes) - 0.3
        reach = [[timing.ratio - timing.low], [timing.high - timing.ratio]]
        look = {"fmt": MARKS[place % len(MARKS)], "c": f"C{place % COLOURS}", "ms": 4}
        axes.errorbar(timing.ratio, y, xerr=reach, label=label if row.baseline else None, **look)
    axes.axvline(1, c="black", lw=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(ylim=(len(names) - 0.5, -0.5), xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", alpha=0.3, which="both")
    if len(sizes) > 1:
        axes.legend(fontsize=7)


def _draw_growth(figure: Any, report: Report) -> None:
    """Time and peak memory a position against batch size and image size: flat is linear."""
    figure.set_size_inches(13, 8)
    grid = figure.subplots(2, 2, squeeze=False)
    for column, (name, varied) in enumerate(SWEEPS.items()):
        rows = [row for row in report.rows if row.group["sweep"] == name and row.times]
        for axes, (label, value) in zip(grid[:, column], GROWING.items(), strict=True):
            _draw_lines(axes, rows, varied, value)
            axes.set(xlabel=varied, ylabel=label, xscale="log", yscale="log")
            sizes = sorted({int(row.group[varied]) for row in rows})
            axes.set_xticks(sizes, map(str, sizes), minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3, which="both")
    if report.rows:
        grid[0, 0].legend(fontsize=7)


def _draw_lines(
    axes: Any, rows: Sequence[Row], varied: str, value: Callable[[Row], float | None]
) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        label = f"{row.name}, {row.group['dtype']}, threads {row.group['threads']}"
        if (height := value(row)) is not None:
            lines.setdefault(label, []).append((float(row.group[varied]), height))
    for place, (label, points) in enumerate(lines.items()):
        style = f"{MARKS[place % len(MARKS)]}-"
        axes.plot(*zip(*sorted(points), strict=True), style, ms=4, label=label)


def _nanoseconds(row: Row) -> float | None:
    timing = row.times.get("forward + backward")
    return None if timing is None else 1e9 * timing.seconds / _positions(row)


def _peak(row: Row) -> float | None:
    return row.costs["peak_bytes"] / _positions(row) if "peak_bytes" in row.costs else None


def _positions(row: Row) -> int:
    """Output positions of a batch."""
    return int(row.group["batch"]) * int(row.group["size"]) ** 2


GROWING: dict[str, Callable[[Row], float | None]] = {
    "ns a position, forward + backward": _nanoseconds,
    "peak bytes a position": _peak,
}
"""What the lines of the picture are, by their label."""

"""Reports as pictures: ratios to the baseline, and how time and memory grow with size."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, by_group

MARKS = "os^vDP*X<>"
SIZES = ("channels", "size", "batch")
"""Keys of a group that are sizes; the others name what kind of thing is measured."""
SWEEPS = {"by batch": "batch", "by size": "size"}
"""What grows, by the name of a sweep."""
GROWING: dict[str, Callable[[Row], float | None]] = {
    "ns a position, forward + backward": lambda row: 1e9 * row.times["forward + backward"].seconds,
    "peak bytes a position": lambda row: row.costs.get("peak_bytes"),
}
"""What the lines of the picture are, times positions, by their label."""


def draw_report(report: Report, path: Path) -> None:
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
    panels = by_group(report.rows, without=SIZES)
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
    same = [key for key in rows[0].group if len({row.group[key] for row in rows}) == 1]
    sizes = by_group(rows, without=same)
    for place, (label, compared) in enumerate(sizes.items()):
        drawn = [(row.name, row.times[column]) for row in compared if column in row.times]
        shift = 0.6 * (place + 0.5) / len(sizes) - 0.3
        heights = [names.index(name) + shift for name, _ in drawn]
        ratios = [timing.ratio for _, timing in drawn]
        reach = [[t.ratio - t.low for _, t in drawn], [t.high - t.ratio for _, t in drawn]]
        style = {"fmt": MARKS[place % len(MARKS)], "c": f"C{place % 10}", "ms": 4}
        axes.errorbar(ratios, heights, xerr=reach, label=label, **style)
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
    for column, sweep in enumerate(SWEEPS):
        for axes, label in zip(grid[:, column], GROWING, strict=True):
            lines = growth(report, sweep, label)
            for place, (name, points) in enumerate(lines.items()):
                style = f"{MARKS[place % len(MARKS)]}-"
                axes.plot(*zip(*points, strict=True), style, ms=4, label=name)
            axes.set(xlabel=SWEEPS[sweep], ylabel=label, xscale="log", yscale="log")
            sizes = sorted({size for points in lines.values() for size, _ in points})
            axes.set_xticks(sizes, map(str, sizes), minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3, which="both")
    grid[0, 0].legend(fontsize=7)


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

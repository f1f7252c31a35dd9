"""Drawing a report as a picture."""

from pathlib import Path
from typing import Any

from neural_similarity.lab.train.plots import write_picture
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.tables.pages import BETTER, paper_change
from neural_similarity_paper.tables.report import PanelReport, Report, RowReport

PAPER_COLOUR, SEED_COLOUR, IMAGE_COLOUR = "tab:orange", "tab:blue", "tab:gray"
SHIFT = 0.12
"""Distance between the two intervals of a row."""


def draw_report(report: Report, path: Path) -> None:
    """Draw the metric and the difference to the baseline, a row each, with the paper's beside.

    Where updates were timed, the metric is drawn against that, too; of adaptations, against how
    many numbers were trained.
    """
    from matplotlib.figure import Figure

    heights = [len(panel.lines) for panel in report.panels]
    trained = any(_trained_parameters(line) for panel in report.panels for line in panel.lines)
    columns = 2 + (report.costs is not None or trained)
    size = (5 * columns, 0.4 * sum(heights) + 1.2 * len(heights) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid, report.panels, strict=True):
        _draw_values(axes[0], panel)
        _draw_differences(axes[1], panel)
        if columns == 3:
            _draw_against(axes[2], panel, report.costs and report.costs.baseline)
    handles = {}
    for axes in grid.flat:
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    figure.suptitle(f"{report.table.title}\n{report.schedule_text}")
    write_picture(figure, path)


def _draw_values(axes: Any, report: PanelReport) -> None:
    rows = range(len(report.lines))
    for y, line in enumerate(report.lines):
        if line.row.paper is not None:
            axes.plot(line.row.paper, y, "D", c=PAPER_COLOUR, label="paper")
        if line.records:
            mean, deviation = line.value
            _draw_point(axes, mean, y, xerr=deviation or 0, label="ours, mean ± sd")
    axes.set_yticks(rows, [line.row.label for line in report.lines], fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"test {report.panel.metric} in percent")
    axes.set_title(f"{report.panel.title}: {BETTER[report.panel.metric]}", fontsize=9)
    axes.grid(axis="x", alpha=0.3)


def _draw_differences(axes: Any, report: PanelReport) -> None:
    baseline = report.panel.rows[0]
    axes.axvline(0, c="black", lw=0.8)
    for y, line in enumerate(report.lines):
        if (change := paper_change(line.row, baseline)) is not None:
            axes.plot(change, y, "D", c=PAPER_COLOUR)
        _draw_interval(axes, y - SHIFT, line.baseline_difference.by_seed, SEED_COLOUR, "by seed")
        _draw_interval(
            axes, y + SHIFT, line.baseline_difference.by_image, IMAGE_COLOUR, "by test image"
        )
    axes.set(ylim=(len(report.lines) - 0.5, -0.5), xlabel=f"points to {baseline.label}")
    axes.set_yticks([])
    axes.grid(axis="x", alpha=0.3)


def _draw_against(axes: Any, report: PanelReport, baseline: str | None) -> None:
    """The metric against the time of an update, or without a baseline against numbers trained."""
    if baseline is None:
        places = [(line, _trained_parameters(line)) for line in report.lines]
        axes.set(xscale="log", xlabel="numbers trained")
    else:
        places = [(line, line.step.mean) for line in report.lines if line.step and line.records]
        axes.set(xlabel=f"time of an update ÷ {baseline}'s")
    places = [(line, x) for line, x in places if x]
    axes.set_visible(bool(places))
    for line, x in places:
        mean, deviation = line.value
        _draw_point(axes, x, mean, yerr=deviation or 0)
        axes.annotate(line.row.label, (x, mean), (5, 4), textcoords="offset points", fontsize=7)
    axes.set(ylabel=f"test {report.panel.metric} in percent")
    axes.margins(x=0.25, y=0.15)
    axes.grid(alpha=0.3)


def _draw_point(axes: Any, x: float, y: float, colour: str = SEED_COLOUR, **options: Any) -> None:
    axes.errorbar(x, y, fmt="o", c=colour, capsize=3, **options)


def _trained_parameters(line: RowReport) -> int | None:
    """How many numbers an adaptation trained."""
    return line.records[0].summary.get("trained") if line.records else None


def _draw_interval(axes: Any, y: float, value: Interval | None, colour: str, kind: str) -> None:
    if value is not None:
        half = [[value.mean - value.low], [value.high - value.mean]]
        label = f"difference, 95 % interval {kind}"
        _draw_point(axes, value.mean, y, colour, xerr=half, label=label)

"""Draw the pictures of README and docs into docs/assets, light and dark, from the records.

    python scripts/pictures.py [NAME...]

Both are transparent; pages show the one for the reader's theme. Colours are Okabe and Ito's, which
colour-blind readers tell apart. At its natural size a picture fits the column of the site.
"""

import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import answers
import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from torch import Tensor

import neural_similarity as ns

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BUDGETS = (1 / 64, 1 / 32, 1 / 8, 1)
UPDATES = 64_000


@dataclass(frozen=True)
class Theme:
    """Colours of a picture."""

    suffix: str
    text: str
    faint: str
    ours: str
    other: str


THEMES = (
    Theme("", "#222222", "#8a8a8a", "#D55E00", "#0072B2"),
    Theme("-dark", "#e4e4e7", "#9a9aa2", "#FF8A3D", "#56B4E9"),
)


def settings_of(theme: Theme) -> dict[str, object]:
    """Settings of matplotlib."""
    colours = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
        theme.text,
    )
    return colours | {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": theme.faint,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "svg.hashsalt": "neural-similarity",
        "figure.constrained_layout.use": True,
    }


def make_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel, in inches."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def matrix_of(structure: ns.nn.Structure, *raw: float) -> Tensor:
    """M of a structure, by its stored numbers."""
    layer = ns.Conv2d(1, 1, 3, similarity=ns.Static(structure))
    with torch.no_grad():
        layer.similarity.raw.copy_(torch.tensor(raw))
        return layer.similarity.matrix()


def draw_kernels(_: Theme) -> Figure:
    """What M does to a kernel: five matrices and the kernels W M."""
    weight = torch.tensor([1.0, 0.6, 0.1, 0.5, 0.0, -0.5, -0.1, -0.6, -1.0])
    cut = torch.ones(9)
    cut[8] = 0
    cases = {
        "M = I": torch.eye(9),
        "rotate 90°": matrix_of(ns.Affine("angle"), 1.0),
        "rotate 30°": matrix_of(ns.Affine("angle"), 1 / 3),
        "shift": matrix_of(ns.Affine("shift"), 0.0, 1.0),
        "one tap off": torch.diag(cut),
    }
    figure = Figure(figsize=(4.9, 2.5))
    panels = figure.subplots(2, len(cases))
    for (name, matrix), (above, below) in zip(cases.items(), panels.T, strict=True):
        changed = (weight @ matrix).view(3, 3)
        above.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
        above.set_title(name, fontsize=12)
        below.imshow(changed, cmap="PuOr_r", vmin=-1.3, vmax=1.3)
        for row in range(3):
            for column in range(3):
                value = f"{changed[row, column]:.1f}".replace("-0.0", "0.0")
                ink = "white" if changed[row, column].abs() > 0.8 else "black"
                below.text(column, row, value, ha="center", va="center", color=ink, size=9)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
    panels[0, 0].set_ylabel("M, 9×9")
    panels[1, 0].set_ylabel("W M, 3×3")
    return figure


SHORT = {"tsa": "TSA", "norm": "batch norm", "full-norm": "M and batch norm", "all": "full"}
SHORT |= {"full-all": "M and full", answers.OURS: "M"}
LABEL_PLACES = (
    *((x, y, "left" if x > 0 else "right") for y in (0, 7, -7) for x in (9, -9)),
    *((x, y, "center") for y in (13, -13) for x in (0, 30, -30)),
)
"""Offsets of labels in points, with their alignment, in the order in which they are tried."""


def draw_accuracy(theme: Theme) -> Figure:
    """Mean accuracy by parameters trained, at tuned learning rates and, hollow, at default ones."""
    cells, ours = answers.changed_cells(), answers.OURS
    means, default = answers.mean_accuracies(), answers.mean_accuracies(True)
    figure, panel = make_panel(5.6, 3.6)
    trained = {way: answers.parameters_trained(cells[0], way) for way in means}
    points = {way: (count, means[way]) for way, count in trained.items() if count}
    for way, point in points.items():
        look = {"marker": "o", "color": theme.faint, "markersize": 7}
        look |= {"marker": "D", "color": theme.ours, "markersize": 10} if way == ours else {}
        panel.plot([point[0]] * 2, [point[1], default[way]], color=look["color"], linewidth=1)
        panel.plot(*point, **look)
        panel.plot(point[0], default[way], **look, markerfacecolor="none")
    panel.axhline(means["statistics"], color=theme.faint, linestyle=":")
    line = panel.text(290, means["statistics"], answers.METHODS["statistics"], va="bottom")
    low, high = (f([*means.values(), *default.values()]) for f in (min, max))
    panel.set(xscale="log", xlim=(250, 800_000), ylim=(low - 0.6, high + 0.6))
    panel.set(xlabel="parameters trained", ylabel=f"accuracy, %, mean of {len(cells)} changes")
    panel.grid(visible=True)
    figure.draw_without_rendering()
    marks = [*points.values(), *((count, default[way]) for way, (count, _) in points.items())]
    boxes = (Bbox.from_bounds(*(panel.transData.transform(mark) - 7), 14, 14) for mark in marks)
    taken = [line.get_window_extent(), *boxes]
    for way, point in sorted(points.items(), key=lambda pair: pair[0] != ours):
        strong = {"color": theme.ours, "weight": "bold"} if way == ours else {}
        taken.append(place_label(panel, SHORT.get(way, answers.METHODS[way]), point, taken, strong))
    return figure


def place_label(
    panel: Axes, name: str, point: tuple[float, float], taken: list[Bbox], look: dict[str, str]
) -> Bbox:
    """Write a name beside a point, at the first place that covers nothing; its box is returned."""
    inside = panel.get_window_extent()
    for at, (x, y, side) in enumerate(LABEL_PLACES, 1):
        text = panel.annotate(
            name, point, (x, y), textcoords="offset points", ha=side, va="center", **look
        )
        box = text.get_window_extent()
        free = not box.count_overlaps(taken) and inside.x0 < box.x0 and box.x1 < inside.x1
        if free or at == len(LABEL_PLACES):
            return box
        text.remove()
    raise AssertionError


def draw_changes(theme: Theme) -> Figure:
    """Every change: M, full fine-tuning, all other methods that train, and the image corrected."""
    figure, panel = make_panel(5.4, 5.2)
    default = [
        (answers.all_accuracies(cell, True)[answers.OURS], cell) for cell in answers.changed_cells()
    ]
    default.sort(key=lambda pair: pair[0])
    for y, (ours, cell) in enumerate(default):
        found = answers.accuracies(cell)
        others = [v for way, v in found.items() if way not in (answers.OURS, "all")]
        fixed = {"color": theme.faint, "linestyle": "none"}
        panel.plot(others, [y] * len(others), marker="|", markersize=11, **fixed)
        panel.plot(found["all"], y, "s", color=theme.other, markersize=7)
        panel.plot(found[answers.OURS], y, "D", color=theme.ours, markersize=8)
        panel.plot(ours, y, "D", color=theme.ours, markersize=8, markerfacecolor="none")
        whole = answers.all_accuracies(cell)
        panel.plot(whole["nothing"], y, "o", markerfacecolor="none", markeredgecolor=theme.text)
        if (place := whole.get("undone")) is not None:
            panel.plot([place] * 2, [y - 0.4, y + 0.4], ":", color=theme.text, linewidth=2)
    entries = (
        ("D", theme.ours, "static M (hollow: default)"),
        ("s", theme.other, "full fine-tuning"),
        ("|", theme.faint, "other methods that train"),
    )
    for marker, colour, name in entries:
        panel.plot([], [], marker, color=colour, label=name)
    panel.plot([], [], "o", markerfacecolor="none", markeredgecolor=theme.text, label="not adapted")
    panel.plot([], [], ":", color=theme.text, label="image corrected, change known")
    labels = [cell.cell.label.partition(",")[0] for _, cell in default]
    panel.set_yticks(range(len(default)), labels)
    panel.set_xlabel("accuracy on changed CIFAR-10, %, 10 labels per class")
    panel.grid(visible=True, axis="x")
    figure.legend(loc="outside lower center", ncols=2, fontsize=10)
    return figure


def draw_schedule(theme: Theme) -> Figure:
    """The difference of static M to the plain network by the length of training."""
    figure, panel = make_panel(5.6, 3.4)
    series = (("static UNS", theme.ours, "D"), ("static DNS", theme.other, "s"))
    for label, colour, marker in series:
        changes = {b: answers.differences_to_plain(b).get(label) for b in BUDGETS}
        shown = [(UPDATES * budget, c.by_image) for budget, c in changes.items() if c]
        at, mean = [x for x, _ in shown], [y.mean for _, y in shown]
        spread = [[y.mean - y.low for _, y in shown], [y.high - y.mean for _, y in shown]]
        panel.errorbar(
            at, mean, spread, color=colour, marker=marker, capsize=4, label=answers.NETWORKS[label]
        )
    panel.axhline(0, color=theme.text, linewidth=1)
    ticks = [round(UPDATES * budget) for budget in BUDGETS]
    panel.set(xscale="log", xlabel="training updates", ylabel="error − plain CNN's, points")
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    panel.set_xticks([], minor=True)
    panel.legend(loc="lower right")
    panel.grid(visible=True, axis="y")
    return figure


def draw_verdicts(theme: Theme) -> Figure:
    """How many claims of the paper have which verdict."""
    figure, panel = make_panel(5, 4.2)
    rows = answers.verdict_counts()[::-1]
    names, counts = zip(*rows, strict=True)
    colours = [theme.ours if name.startswith("holds") else theme.other for name in names]
    bars = panel.barh(names, counts, color=colours, height=0.7)
    panel.bar_label(bars, padding=3)
    panel.set_xlabel("claims")
    return figure


def draw_boxes(
    theme: Theme,
    size: Sequence[float],
    boxes: dict[str, tuple[str, float, float]],
    arrows: Sequence[Sequence[str]],
    strong: Sequence[str],
) -> Figure:
    """Boxes of text at places in percent, and arrows with their words between them."""
    figure, panel = make_panel(*size)
    panel.set(xlim=(0, 100), ylim=(0, 100))
    panel.set_axis_off()
    drawn = {}
    for key, (words, x, y) in boxes.items():
        colour = theme.ours if key in strong else theme.text
        frame = {"boxstyle": "round,pad=0.45", "facecolor": "none", "edgecolor": colour}
        drawn[key] = panel.text(x, y, words, ha="center", va="center", bbox=frame, fontsize=10.5)
    for start, end, words in arrows:
        (_, x0, y0), (_, x1, y1) = boxes[start], boxes[end]
        line = {"arrowstyle": "-|>", "color": theme.faint, "shrinkA": 2, "shrinkB": 2}
        line |= {f"patch{k}": drawn[box].get_bbox_patch() for k, box in (("A", start), ("B", end))}
        panel.annotate("", (x1, y1), (x0, y0), arrowprops=line)
        middle, level = ((x0 + x1) / 2, (y0 + y1) / 2), y0 == y1
        side = {"ha": "center", "va": "bottom"} if level else {"ha": "left", "va": "center"}
        text = {"textcoords": "offset points", "color": theme.other, "fontsize": 9.5}
        panel.annotate(words, middle, (0, 3) if level else (6, 0), **text | side)
    return figure


PICTURES: dict[str, Callable[[Theme], Figure]] = {
    "kernel": draw_kernels,
    "accuracy": draw_accuracy,
    "changes": draw_changes,
    "schedule": draw_schedule,
    "verdicts": draw_verdicts,
    "which": partial(draw_boxes, **CONTENT["which"]),
    "adapter": partial(draw_boxes, **CONTENT["adapter"]),
    "architecture": partial(draw_boxes, **CONTENT["architecture"]),
}


def main(names: list[str]) -> None:
    """Draw the pictures that are named, or all."""
    for name, theme in product(names or PICTURES, THEMES):
        with mpl.rc_context(settings_of(theme)):
            file = ASSETS / f"{name}{theme.suffix}.svg"
            PICTURES[name](theme).savefig(file, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])

"""Curves as pictures: of a run's log, of several runs, of experiments."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neural_similarity.files import new_file
from neural_similarity.lab.terminal import plot_label


class Curve(NamedTuple):
    """Points (x, y) to be joined, or marked alone, as matplotlib's `style` says."""

    points: Iterable[tuple[float, float]]
    label: str = ""
    """Its name in the legend, or none."""
    style: str = "-"
    look: Mapping[str, Any] = {}
    """Further options of matplotlib's `plot`, or of `errorbar` where `yerr` is among them."""


def draw_curves(axes: Any, curves: Sequence[Curve], **options: Any) -> None:
    """Draw curves with a grid and a legend; `options` are those of matplotlib's `axes.set`."""
    for points, label, style, look in curves:
        draw = axes.errorbar if "yerr" in look else axes.plot
        form = {"fmt": style} if "yerr" in look else {}
        draw(
            *zip(*points, strict=True),
            *([] if form else [style]),
            label=plot_label(label) or None,
            **form,
            **look,
        )
    axes.set(**options)
    axes.grid(alpha=0.3)
    if any(curve.label for curve in curves):
        axes.legend(fontsize=7)


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    with new_file(path) as file:
        figure.savefig(file, format="png")

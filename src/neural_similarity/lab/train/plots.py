"""Learning curves of a run as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_learning_curves(
    records: Sequence[dict[str, Any]], path: Path, summary: Mapping[str, Any] | None = None
) -> None:
    """Draw loss and accuracy against steps: training batches, held-out images, the test at the end.

    Args:
        records: lines of metrics.
        path: PNG file to write.
        summary: the run's, with its scores on the test set where it has any.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for label, key, mark in (
            ("training batches", name, "-"),
            ("held-out images", f"validation_{name}", "o--"),
        ):
            points = [(record["step"], record[key]) for record in records if key in record]
            mark = mark if len(points) > 1 else "o"  # a line needs two
            if points:
                axes.plot(*zip(*points, strict=True), mark, label=label, markersize=4)
        if summary and f"test_{name}" in summary:
            place = summary["steps"], summary[f"test_{name}"]
            axes.plot(*place, "k*", label="test images", markersize=10)
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)

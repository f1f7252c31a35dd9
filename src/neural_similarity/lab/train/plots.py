"""Learning curves of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw_learning_curves(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and accuracy against steps, of training batches and of held-out images.

    Args:
        records: lines of metrics.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for label, key in (("training batches", name), ("held-out images", f"validation_{name}")):
            points = [(record["step"], record[key]) for record in records if key in record]
            if points:
                axes.plot(*zip(*points, strict=True), label=label)
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)

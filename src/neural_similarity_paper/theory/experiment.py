"""The experiments by name, and the files that each of them writes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from neural_similarity.lab.train.environment import checkout_commit, command_line, cpu_name
from neural_similarity.lab.train.files import write_result
from neural_similarity.lab.train.plots import write_picture
from neural_similarity_paper.theory import bias, euler, flow, order, spectra


@dataclass(frozen=True)
class Experiment:
    """An experiment: its question, computation and picture."""

    question: str
    compute: Callable[..., Any]
    """Returns a dataclass of numbers."""
    draw: Callable[[Any, Any], None]
    """Draws the result on an empty figure."""
    reads_runs: bool = False
    """Whether it takes run folders; the others take the number of seeds."""


EXPERIMENTS = {
    "flow": Experiment(
        "Eq. 6: how W moves when M and W' descend the gradient", flow.compute, flow.draw_result
    ),
    "bias": Experiment(
        "§5.1: whether M and W' are drawn to low nuclear norm, by start",
        bias.compute, bias.draw_result,
    ),
    "spectra": Experiment(
        "§5.1: singular values of the folded kernels of trained networks",
        spectra.compute, spectra.draw_result, reads_runs=True,
    ),
    "euler": Experiment(
        "§5.2: residual layers as Euler steps of an equation", euler.compute, euler.draw_result
    ),
    "order": Experiment(
        "§6: a dynamic layer with a linear predictor is a quadratic function",
        order.compute, order.draw_result,
    ),
}  # fmt: skip


def run_experiment(
    name: str, out: Path, *, seeds: int, runs: Sequence[Path] = ()
) -> tuple[Path, Path]:
    """Compute the experiment `name` and write `out`/name.json and `out`/name.png."""
    from matplotlib.figure import Figure

    experiment = EXPERIMENTS[name]
    start = time.perf_counter()
    result = experiment.compute(runs) if experiment.reads_runs else experiment.compute(seeds)
    record = {
        "experiment": name,
        "question": experiment.question,
        "command": command_line(),
        "commit": checkout_commit(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - start, 1),
        "result": asdict(result),
    }
    figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
    experiment.draw(result, figure)
    numbers, picture = out / f"{name}.json", out / f"{name}.png"
    write_result(numbers, record)
    write_picture(figure, picture)
    return numbers, picture

"""Section 5 of the paper as experiments: numbers as JSON, and a picture of each."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch

from neural_similarity.lab.train.environment import checkout_commit, command_line, cpu_name
from neural_similarity.lab.train.files import write_result
from neural_similarity.lab.train.plots import write_picture
from neural_similarity_paper.theory import bias, euler, flow, order, spectra


class Experiment(NamedTuple):
    """A question, and the module that computes numbers (`compute`) and draws them."""

    question: str
    module: ModuleType
    reads_runs: bool = False
    """Whether it takes run folders; the others take the number of seeds."""


EXPERIMENTS = {
    "flow": Experiment("Eq. 6: how W moves when M and W' descend the gradient", flow),
    "bias": Experiment("§5.1: whether M and W' are drawn to low nuclear norm, by start", bias),
    "spectra": Experiment(
        "§5.1: singular values of the folded kernels of trained networks", spectra, reads_runs=True
    ),
    "euler": Experiment("§5.2: residual layers as Euler steps of an equation", euler),
    "order": Experiment(
        "§6: a dynamic layer with a linear predictor is a quadratic function", order
    ),
}


def run_experiment(
    name: str, out: Path, *, seeds: int, runs: Sequence[Path] = ()
) -> tuple[Path, Path]:
    """Compute the experiment `name` and write `out`/name.json and `out`/name.png."""
    from matplotlib.figure import Figure

    experiment = EXPERIMENTS[name]
    start = time.perf_counter()
    result = experiment.module.compute(runs if experiment.reads_runs else seeds)
    record = {
        "experiment": name,
        "question": experiment.question,
        "command": command_line(),
        "commit": checkout_commit(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - start, 1),
        "result": result,
    }
    figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
    experiment.module.draw_result(result, figure)
    numbers, picture = out / f"{name}.json", out / f"{name}.png"
    write_result(numbers, record)
    write_picture(figure, picture)
    return numbers, picture

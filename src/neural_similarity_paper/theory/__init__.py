"""Section 5 of the paper as experiments: numbers as JSON, and a picture of each."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from neural_similarity.lab.train.environment import checkout_commit, command_line, cpu_name
from neural_similarity.lab.train.files import write_result
from neural_similarity.lab.train.plots import write_picture
from neural_similarity_paper.theory import bias, euler, flow, order, spectra

EXPERIMENTS: dict[str, tuple[str, ModuleType]] = {
    "flow": ("Eq. 6: how W moves when M and W' descend the gradient", flow),
    "bias": ("§5.1: whether M and W' are drawn to low nuclear norm, by start", bias),
    "spectra": ("§5.1: singular values of the folded kernels of trained networks", spectra),
    "euler": ("§5.2: residual layers as Euler steps of an equation", euler),
    "order": ("§6: a dynamic layer with a linear predictor is a quadratic function", order),
}
"""A question, and the module that computes numbers (`compute`) and draws them (`draw_result`)."""


def run_experiment(
    name: str, out: Path, *, seeds: int, runs: Sequence[Path] = ()
) -> tuple[Path, Path]:
    """Compute the experiment `name` and write `out`/name.json and `out`/name.png."""
    from matplotlib.figure import Figure

    question, module = EXPERIMENTS[name]
    start = time.perf_counter()
    result = module.compute(runs if module is spectra else seeds)
    record = {
        "experiment": name,
        "question": question,
        "command": command_line(),
        "commit": checkout_commit(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - start, 1),
        "result": result,
    }
    figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
    module.draw_result(result, figure)
    numbers, picture = out / f"{name}.json", out / f"{name}.png"
    write_result(numbers, record)
    write_picture(figure, picture)
    return numbers, picture

"""Estimating a step's time on this machine: by records, or roughly by multiplications."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from neural_similarity import models
from neural_similarity.lab.paper.records import Record, budget_folders, read_record, record_files
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.recipes.released import SUFFIX
from neural_similarity.lab.train import Recipe, Runtime, choose_runtime
from neural_similarity.lab.train.environment import cpu_name, device_name
from neural_similarity.lab.train.run import build_network
from neural_similarity.lab.train.runtime import PrecisionChoice, threads
from neural_similarity.models import macs

THREADS = 1
"""The number of threads of a run."""
IMAGES, TRIES = 32, 3


@dataclass(frozen=True)
class Pace:
    """The time of a step, measured or estimated."""

    seconds: float
    """Seconds of one step."""
    rough: bool = False
    """Whether it is estimated from multiplications, not from a run."""


def paces(names: Iterable[str], results: Path, precision: PrecisionChoice) -> dict[str, Pace]:
    """Seconds per step of each recipe on this machine.

    It is the median over the recipe's records, at any budget, on a machine like this one. Without
    any it is rough: multiplications, at the speed of the plain CNN-9, which is timed here.

    Args:
        names: of the recipes.
        results: folder of the records.
        precision: of the runs: "auto" (what is faster here), "bf16" or "fp32".
    """
    runtime = choose_runtime(precision=precision, thread_count=THREADS)
    device = {"cpu": cpu_name(), "device": device_name(runtime.device)}
    here = device | {"threads": THREADS, "precision": runtime.precision}
    return {
        name: _recorded(results, name, here) or _by_multiplications(RECIPES[name], runtime)
        for name in names
    }


def _recorded(results: Path, name: str, here: dict[str, Any]) -> Pace | None:
    """The pace from records of machines like `here`.

    A released variant without records is taken to be as fast as the recipe that it is one of.
    """
    found = [
        record.training["seconds"] / record.training["steps"]
        for record in _records(name, results)
        if record.environment.items() >= here.items()
    ]
    if not found and name.endswith(SUFFIX):
        return _recorded(results, name.removesuffix(SUFFIX), here)
    return Pace(median(found)) if found else None


def evaluation_pace(name: str, method: str, results: Path) -> Pace:
    """Seconds per task of evaluating a method: the median of its records, or unknown, 0."""
    found = [
        record.summary["seconds"] / len(record.correct)
        for record in _records(name, results)
        if record.evaluation is not None and record.evaluation.method == method
    ]
    return Pace(median(found)) if found else Pace(0.0, rough=True)


def _records(name: str, results: Path) -> list[Record]:
    """The records of a recipe at any budget."""
    folders = budget_folders(results, name)
    return [read_record(path) for folder in folders for path in record_files(folder)]


def _by_multiplications(recipe: Recipe, runtime: Runtime) -> Pace:
    classes, channels, size = models.usual_sizes(recipe.model)
    size = recipe.image_size or size
    with torch.device("meta"):
        network = build_network(recipe, classes, image_size=size)
    count = macs(network, channels, size, size)
    return Pace(recipe.images_per_step * count * seconds_per_mac(runtime), rough=True)


@cache
def seconds_per_mac(runtime: Runtime) -> float:
    """Time that training takes for each multiply-add of the forward pass of one image.

    The shortest of three passes and their gradients over 32 images of the plain CNN-9.
    """
    _, channels, size = models.usual_sizes("cnn9")
    network, times = runtime.place(models.build("cnn9", models.CIFAR_CLASSES)), []
    images = runtime.place_images(torch.rand(IMAGES, channels, size, size))
    with threads(THREADS):
        for _ in range(TRIES):
            start = time.perf_counter()
            with runtime.autocast():
                scores = network(images)
            scores.float().square().mean().backward()
            runtime.synchronize()
            times.append(time.perf_counter() - start)
    return min(times) / IMAGES / macs(network, channels, size, size)

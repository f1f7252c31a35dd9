"""Continual adaptation: CIFAR-100 in twenty tasks of five classes on a frozen ResNet-20.

The network is CIFAR-10's and the task of an image is known, so that nothing is forgotten: a task
costs the bytes of what it adds. An order is a permutation of the classes, cut into tasks.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from neural_similarity.lab.data import Dataset, Images, load_dataset
from neural_similarity.lab.data.class_split import select_classes
from neural_similarity.lab.data.images import seeded_generator, split_off
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.models import resnet20
from neural_similarity_paper.recipes.adaptation import HEADED, RESNET, WAYS, way_fields
from neural_similarity_paper.studies.adapt_map import FIRST_RATES, MapRun, RateSearch
from neural_similarity_paper.studies.adapt_runs import run_in_memory
from neural_similarity_paper.studies.adapt_study import Study, StudyCell

TASK_WAYS = ("full", "norm-statistics", "piggyback", "ssf", "residual", "head")
"""The ways of a task; M comes first, and normalisation has statistics of its own."""
TASKS, TASK_CLASSES = 20, 5
ORDERS = (1, 2, 3, 4, 5)
TASK_HELD_OUT = 100
"""Training images of each class that rates are chosen on."""
TASK_STEPS: dict[str, Any] = {"steps": 60, "drops": (42,), "batch_size": 32, "crop": 0}


def task_recipe(trial: MapRun) -> AdaptationRecipe:
    """The recipe of a way on a task; the classifier is new and always trains."""
    fields = way_fields(RESNET | HEADED | TASK_STEPS | WAYS[trial.way][1])
    fields |= {"inputs": "imagenet", "dataset": "cifar100", "lr": trial.rate, "seed": trial.draw}
    return AdaptationRecipe(**fields, threads=1, precision="bf16")


def task_classes(trial: MapRun) -> Tensor:
    """The classes of a task, int64 (5,)."""
    drawn = torch.randperm(TASKS * TASK_CLASSES, generator=seeded_generator("order", trial.draw))
    return drawn.view(TASKS, TASK_CLASSES)[int(trial.change.removeprefix("task-"))]


def task_images(whole: Dataset, trial: MapRun, held_out: bool) -> Dataset:
    """A task's images, those to score class by class; held out ones are training images."""
    names = [whole.train.classes[c] for c in task_classes(trial).tolist()]
    train, test = (select_classes(cast(Images, p), names) for p in (whole.train, whole.test))
    if held_out:
        train, test = split_off(train, [TASK_HELD_OUT] * len(names), seed=0)
    return replace(whole, train=train, test=test.subset(test.labels.argsort(stable=True)))


def task_positions(trial: MapRun, images: int) -> Tensor:
    """Where a task's test images stand among those of all classes."""
    each = images // TASK_CLASSES
    return (task_classes(trial)[:, None] * each + torch.arange(each)).flatten()


@cache
def _cifar100(data: Path) -> Dataset:
    return load_dataset("cifar100", root=data)


def run_task(trial: MapRun, data: Path, held_out: bool) -> dict[str, Any]:
    """Train and score a way on a task."""
    whole = task_images(_cifar100(data), trial, held_out)
    return run_in_memory(task_recipe(trial), whole, data)


def task_bytes(way: str, trained: int) -> str:
    """Bytes that a task adds: four a number, running statistics of its own too; a bit a mask."""
    network = resnet20(num_classes=TASK_CLASSES)
    head = sum(p.numel() for p in network.linear.parameters())
    numbers = (trained - head) / 32 + head if way == "piggyback" else trained
    if way.endswith("statistics"):
        numbers += sum(t.numel() for name, t in network.named_buffers() if "running" in name)
    return f"{4 * numbers:,.0f}"


CONTINUAL = Study(
    name="adapt-continual",
    title="Twenty tasks of CIFAR-100 on a frozen ResNet-20 of CIFAR-10",
    note=(
        "A draw is an order of the hundred classes, cut into twenty tasks of five; an image's task "
        "is known. A task adds what its way trains and a classifier of 325 numbers, four bytes "
        "each, its running statistics where it has its own, and one bit for each masked weight. "
        "60 steps of 32 images; accuracy over all 10,000 test images. Rates were chosen for each "
        "way on two tasks of another order, on training images held out."
    ),
    labels={way: WAYS[way][0] for way in TASK_WAYS},
    cells=(
        StudyCell(
            "20 tasks",
            tuple(f"task-{task}" for task in range(TASKS)),
            ORDERS,
            dict.fromkeys(TASK_WAYS, RateSearch(("task-0", "task-1"), (11,), FIRST_RATES)),
        ),
    ),
    run_trial=run_task,
    size=("bytes a task", task_bytes),
    positions=task_positions,
)

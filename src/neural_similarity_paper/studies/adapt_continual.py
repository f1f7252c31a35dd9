"""Continual adaptation: CIFAR-100 in twenty tasks of five classes on a frozen ResNet-20.

The network is CIFAR-10's and the task of an image is known, so that nothing is forgotten: a task
costs the bytes of what it adds. An order is a permutation of the classes, cut into tasks. The
classifier of a task is new: its rate is the linear probe's, and a way's part has its own.
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
from neural_similarity_paper.studies.adapt_map import FIRST_RATES
from neural_similarity_paper.studies.adapt_study import Cell, Study, study_fields
from neural_similarity_paper.studies.adapt_training import MemoryRun, backbone_terms
from neural_similarity_paper.studies.trials import SearchPlace, Trial

TASKS, TASK_CLASSES = 20, 5
ORDERS = (1, 2, 3, 4, 5)
TASK_HELD_OUT = 100
"""Training images of each class that rates are chosen on."""
TASK_STEPS: dict[str, Any] = {"steps": 60, "drops": (42,), "batch_size": 32, "crop": 0}
TASK_CELL = Cell(
    "20 tasks",
    "20 tasks",
    tuple(f"task-{task}" for task in range(TASKS)),
    ORDERS,
    SearchPlace(("task-0", "task-1"), (11,), FIRST_RATES),
    "tasks",
    "rates",
)


def task_recipe(trial: Trial) -> AdaptationRecipe:
    """The recipe of a way on a task, but for rates; the classifier is new and always trains."""
    fields = way_fields(RESNET | HEADED | TASK_STEPS | WAYS[trial.way][1])
    fields |= {"inputs": "imagenet", "dataset": "cifar100", "lr": 1.0, "seed": trial.draw}
    norm = "eval" if trial.way == "ssf" else "train"
    return AdaptationRecipe(**fields, norm=norm, threads=1, precision="bf16")


def task_classes(trial: Trial) -> Tensor:
    """The classes of a task, int64 (5,)."""
    drawn = torch.randperm(TASKS * TASK_CLASSES, generator=seeded_generator("order", trial.draw))
    return drawn.view(TASKS, TASK_CLASSES)[int(trial.change.removeprefix("task-"))]


def task_images(whole: Dataset, trial: Trial, held_out: bool) -> Dataset:
    """A task's images, those to score class by class; held out ones are training images."""
    names = [whole.train.classes[c] for c in task_classes(trial).tolist()]
    train, test = (select_classes(cast(Images, p), names) for p in (whole.train, whole.test))
    if held_out:
        train, test = split_off(train, [TASK_HELD_OUT] * len(names), seed=0)
    return replace(whole, train=train, test=test.subset(test.labels.argsort(stable=True)))


def task_positions(trial: Trial, images: int) -> Tensor:
    """Where a task's test images stand among those of all classes."""
    each = images // TASK_CLASSES
    return (task_classes(trial)[:, None] * each + torch.arange(each)).flatten()


@cache
def _cifar100(data: Path) -> Dataset:
    return load_dataset("cifar100", root=data)


def run_task(trial: Trial, data: Path, held_out: bool) -> dict[str, Any]:
    """Train and score a way on a task."""
    whole = task_images(_cifar100(data), trial, held_out)
    return MemoryRun.start(task_recipe(trial), whole, data).train(trial.rates)


def task_bytes(way: str, trained: int, moving: bool) -> str:
    """Bytes that a task adds: four a number, also of `moving` statistics; a bit a mask."""
    network = resnet20(num_classes=TASK_CLASSES)
    head = sum(p.numel() for p in network.linear.parameters())
    numbers = (trained - head) / 32 + head if way == "piggyback" else trained
    if moving:
        numbers += sum(t.numel() for name, t in network.named_buffers() if "running" in name)
    return f"{4 * numbers:,.0f}"


CONTINUAL = Study(
    **study_fields("adapt-continual"),
    cells=(TASK_CELL,),
    run_trial=run_task,
    terms=backbone_terms,
    size=("bytes a task", lambda way, trained: task_bytes(way, trained, way != "ssf")),
    positions=task_positions,
)

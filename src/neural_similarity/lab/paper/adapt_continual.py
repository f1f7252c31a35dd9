"""Continual adaptation: CIFAR-100 in twenty tasks of five classes on a frozen ResNet-20.

The network is CIFAR-10's and the task of an image is known, so that nothing is forgotten: a task
costs the bytes of what it adds. An order is a permutation of the classes, cut into tasks.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch

from neural_similarity.lab.data import Dataset, Images, load_dataset
from neural_similarity.lab.data.class_split import select_classes
from neural_similarity.lab.data.images import seeded_generator, split_off
from neural_similarity.lab.paper.adapt_map import MapRun, RateSearch, chosen_rate
from neural_similarity.lab.paper.adapt_runs import (
    ReportLine,
    RunTrial,
    Sheet,
    fill_search,
    fill_sheet,
    filling_alone,
    open_sheet,
    run_in_memory,
)
from neural_similarity.lab.recipes.adaptation import HEADED, RESNET, WAYS
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe

CONTINUAL_NAME = "adapt-continual"
TASK_WAYS: tuple[str, ...] = ("full", "norm-statistics", "piggyback", "ssf", "residual", "head")
"""The ways of a task; M comes first, and normalisation has statistics of its own."""
TASKS, TASK_CLASSES = 20, 5
ORDERS = (1, 2, 3, 4, 5)
"""Permutations of the classes."""
ADAM_RATES = (3e-4, 1e-3, 3e-3)
"""Where the choice of a rate of Adam's begins."""
TASK_SEARCH = RateSearch(("task-0", "task-1"), (11,), (3e-3, 0.01, 0.03))
"""Rates are chosen on two tasks of an order of their own, on images held out."""
TASK_HELD_OUT = 100
"""Training images of each class that rates are chosen on."""
TASK_STEPS: dict[str, Any] = {"steps": 60, "drops": (42,), "batch_size": 32, "crop": 0}


def task_recipe(trial: MapRun) -> AdaptationRecipe:
    """The recipe of a way on a task; the classifier is new and always trains."""
    fields: dict[str, Any] = {"similarity": None, "train": "M", "threads": 1, "precision": "bf16"}
    fields |= RESNET | HEADED | TASK_STEPS | {"inputs": "imagenet", "dataset": "cifar100"}
    fields |= WAYS[trial.way][1] | {"lr": trial.rate, "seed": trial.draw}
    fields["train"] = "head" if fields["train"] == "head" else f"{fields['train']}+head"
    # The gradient of a mask has no scale of its own, and its authors take Adam.
    return AdaptationRecipe(**fields, optimizer="adam" if trial.way == "piggyback" else "sgd")


def task_search(way: str) -> RateSearch:
    """The search of a way's rate."""
    return TASK_SEARCH._replace(first=ADAM_RATES) if way == "piggyback" else TASK_SEARCH


def task_classes(order: int, task: int, classes: int = TASKS * TASK_CLASSES) -> list[int]:
    """The classes of a task."""
    drawn = torch.randperm(classes, generator=seeded_generator("order", order)).tolist()
    return drawn[task * TASK_CLASSES : (task + 1) * TASK_CLASSES]


def task_images(whole: Dataset, trial: MapRun, *, held_out: bool) -> Dataset:
    """A task's images, those to score class by class; held out ones are training images."""
    task = int(trial.change.removeprefix("task-"))
    names = [whole.train.classes[c] for c in task_classes(trial.draw, task)]
    train, test = (select_classes(cast(Images, p), names) for p in (whole.train, whole.test))
    if held_out:
        train, test = split_off(train, [TASK_HELD_OUT] * len(names), seed=0)
    return replace(whole, train=train, test=test.subset(test.labels.argsort(stable=True)))


def task_trials(order: int, rates: dict[str, float]) -> list[MapRun]:
    """The runs of an order, a task after the other."""
    tasks = [f"task-{task}" for task in range(TASKS)]
    return [MapRun(way, rates[way], task, order) for task in tasks for way in TASK_WAYS]


def task_rates(sheet: Sheet) -> dict[str, float]:
    """The rate of every way, where these runs chose it."""
    return {way: chosen_rate(way, sheet.accuracies, task_search(way)) for way in TASK_WAYS}


def continual_path(results: Path) -> Path:
    """The file of all runs."""
    return results / CONTINUAL_NAME / "runs.json"


def run_continual(data: Path, results: Path, report: ReportLine) -> None:
    """Choose rates and run the orders that lack runs, one after the other."""
    path = continual_path(results)
    with filling_alone(path.parent):
        sheet = open_sheet(path)
        for way in TASK_WAYS:
            fill_search(sheet, [way], _task_run(data, held_out=True), report, task_search(way))
        trials = (t for order in ORDERS for t in task_trials(order, task_rates(sheet)))
        fill_sheet(sheet, trials, _task_run(data, held_out=False), report)


def _task_run(data: Path, *, held_out: bool) -> RunTrial:
    whole = lru_cache(lambda: load_dataset("cifar100", root=data))

    def run_trial(trial: MapRun) -> dict[str, Any]:
        return run_in_memory(
            task_recipe(trial), task_images(whole(), trial, held_out=held_out), data
        )

    return run_trial

"""Continual adaptation as text: accuracy against the bytes that a task adds."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_similarity.lab.paper.adapt_continual import (
    ORDERS,
    TASK_CLASSES,
    TASK_SEARCH,
    TASK_STEPS,
    TASK_WAYS,
    continual_path,
    task_classes,
    task_rates,
    task_trials,
)
from neural_similarity.lab.paper.adapt_map import MapRun
from neural_similarity.lab.paper.adapt_report import (
    compared_cells,
    leads_over_baselines,
    markdown_rows,
)
from neural_similarity.lab.paper.adapt_runs import read_sheet
from neural_similarity.lab.recipes.adaptation import WAYS
from neural_similarity.lab.train.scoring import unpack_correct
from neural_similarity.models import resnet20

CONTINUAL_TITLE = "# Twenty tasks of CIFAR-100 on a frozen ResNet-20 of CIFAR-10"
CONTINUAL_NOTE = (
    "An order is a permutation of the classes, cut into twenty tasks of five; an image's task is "
    "known. A task adds what its way trains and a classifier of 325 numbers, four bytes each, its "
    "running statistics where it has its own, and one bit for each weight that is masked. "
    f"{TASK_STEPS['steps']} steps of {TASK_STEPS['batch_size']} images; accuracy over all "
    "10,000 test images, ± its standard deviation over orders. Leads are those of static full M in "
    "points, with 95 % intervals (over orders and test images, crossed, from three orders on; over "
    "test images before) and p-values adjusted by Holm. Rates were chosen for each way on "
    f"{len(TASK_SEARCH.changes)} tasks of another order, on training images held out."
)


def task_bytes(way: str, trained: int) -> int:
    """Bytes that a task adds to the network, where a way trains so many numbers."""
    network = resnet20()
    head = TASK_CLASSES * (network.linear.in_features + 1)
    if way == "piggyback":
        return (trained - head) // 8 + 4 * head
    running = [t for name, t in network.named_buffers() if "running" in name]
    own = sum(map(torch.numel, running)) if way.endswith("statistics") else 0
    return 4 * (trained + own)


def correct_by_class(runs: Mapping[str, dict[str, Any]], trials: Iterable[MapRun]) -> Tensor:
    """Whether every test image was right, flat, class by class, from a way's tasks of an order."""
    rows: dict[int, Tensor] = {}
    for task, trial in enumerate(trials):
        correct = unpack_correct(runs[str(trial)]["correct"]).view(TASK_CLASSES, -1)
        rows |= zip(task_classes(trial.draw, task), correct, strict=True)
    return torch.cat([rows[c] for c in sorted(rows)])


def continual_to_markdown(results: Path) -> str:
    """The orders that have run as a table, or that there is none.

    Raises:
        ValueError: the file is damaged, or rates are not chosen yet.
    """
    path = continual_path(results)
    runs: dict[str, dict[str, Any]] = {}
    rates = dict.fromkeys(TASK_WAYS, 0.0)
    if path.exists():
        sheet = read_sheet(path)
        runs, rates = sheet.runs, task_rates(sheet)
    trials = {order: task_trials(order, rates) for order in ORDERS}
    finished = [order for order, own in trials.items() if all(str(t) in runs for t in own)]
    parts = [CONTINUAL_TITLE, f"{len(finished)} of {len(ORDERS)} orders have run.", CONTINUAL_NOTE]
    if finished:
        correct = {
            way: torch.stack(
                [
                    correct_by_class(runs, [t for t in trials[order] if t.way == way])
                    for order in finished
                ]
            )
            for way in TASK_WAYS
        }
        trained = {t.way: runs[str(t)]["trained"] for t in trials[finished[0]]}
        parts.append(_ways_table(correct, trained, rates))
    return "\n\n".join(parts) + "\n"


def _ways_table(
    correct: Mapping[str, Tensor], trained: Mapping[str, int], rates: Mapping[str, float]
) -> str:
    leads, adjusted = leads_over_baselines(correct)
    rows = [
        (
            WAYS[way][0],
            f"{task_bytes(way, trained[way]):,}",
            f"{rates[way]:g}",
            *compared_cells(way, correct, leads, adjusted),
        )
        for way in TASK_WAYS
    ]
    head = ("way", "bytes a task", "rate", "accuracy, %", "lead of M", "p, adjusted")
    return markdown_rows(head, *rows)

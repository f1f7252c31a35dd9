"""`nsim bench training` and `nsim bench recipes`: updates of networks, side by side."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import DTYPES
from benchmarks.comparison import Comparison, by_threads
from benchmarks.costs import macs, peak_bytes
from benchmarks.networks import CLASSES, Setting
from benchmarks.report import Row
from benchmarks.subject import Subject
from benchmarks.timing import Call, Effort, Timing
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.regularize import parameter_groups

STEP = "step"
Batch = tuple[Tensor, Tensor]


def training_steps(
    setting: Setting, what: str, subjects: Sequence[Subject], counts: Sequence[int], effort: Effort
) -> list[Row]:
    """Updates of networks, the baseline first, on one batch: no data, no log."""
    images = setting.images(setting.batch)
    labels = torch.arange(setting.batch, device=images.device) % CLASSES

    def call(subject: Subject) -> Call:
        recipe = Recipe()
        groups = parameter_groups(subject.module, weight_decay=recipe.weight_decay)
        optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
        return lambda: update(subject.module, optimizer, (images, labels))

    def costs(subject: Subject, times: Mapping[str, Timing]) -> dict[str, float | None]:
        return {
            "images_per_second": setting.batch / times[STEP].seconds,
            "peak_bytes": peak_bytes(call(subject), images.device),
            "macs": macs(subject.module, [images]) / setting.batch,
        }

    comparison = Comparison(
        group={"what": what} | setting.group,
        subjects=subjects,
        grad=setting.check_grad,
        dtype=DTYPES[setting.runtime.precision],
        timed={STEP: call},
        costs=costs,
    )
    return by_threads(comparison, counts, effort)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step of gradient descent, and nothing else."""
    images, labels = batch
    loss = F.cross_entropy(model(images).float(), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

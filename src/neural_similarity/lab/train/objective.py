"""What training minimises: the part of the loop that a task changes."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.data import Batches, FileBatches
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import orthogonality
from neural_similarity.regularize import penalty


class Objective(Protocol):
    """The loss of a step."""

    @property
    def on_device(self) -> bool:
        """Whether `differentiate` asks nothing of the host, so that a GPU can replay it."""
        ...

    def prepare(self, step: int) -> None:
        """Draw what update `step` sees, a function of `step`."""
        ...

    def differentiate(self, network: nn.Module) -> Tensor:
        """Add gradients of the prepared update's loss to the parameters; its `tally`."""
        ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy on batches of images, and penalties of similarities and sphere kernels."""

    recipe: Recipe
    runtime: Runtime
    batches: Batches | FileBatches

    @property
    def on_device(self) -> bool:
        """Whether the images are held there."""
        return isinstance(self.batches, Batches)

    def prepare(self, step: int) -> None:
        """Load batch `step`."""
        self.batches.load(step)

    def differentiate(self, network: nn.Module) -> Tensor:
        """Add gradients of the loss on the loaded batch; its `tally`."""
        x, y = self.batches.loaded()
        with self.runtime.autocast():
            logits = network(x)
        logits = logits.float()
        recipe = self.recipe
        loss = cross_entropy(logits, y, recipe.label_smoothing, recipe.probability_floor)
        if recipe.penalty:
            loss = loss + recipe.penalty * penalty(network, recipe.penalty_measure)
        if recipe.orthogonality:
            loss = loss + recipe.orthogonality * orthogonality(network, unit=False)
        loss.backward()
        return tally(loss, (logits.detach().argmax(1) == y).sum(), len(y))


def tally(loss: Tensor, correct: Tensor, images: int) -> Tensor:
    """Summed loss, correct images and images of a step, without waiting for the device.

    `correct` is NaN where a step does not tell.
    """
    return torch.stack([loss.detach() * images, correct, torch.full_like(correct, images)]).double()


def cross_entropy(logits: Tensor, y: Tensor, smoothing: float, floor: float) -> Tensor:
    r"""$-\sum_j t_j \log(p_j + \text{floor})$, the mean over a batch, for smoothed targets t."""
    if not floor:
        return F.cross_entropy(logits, y, label_smoothing=smoothing)
    logs = (logits.softmax(1) + floor).log()
    return F.nll_loss(logs, y) * (1 - smoothing) - smoothing * logs.mean()

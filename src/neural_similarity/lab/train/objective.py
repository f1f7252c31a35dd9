"""The training loss: the part of the loop that depends on the task."""

from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.data import Batches, FileBatches
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.recipe import LossTerms
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import orthogonality
from neural_similarity.regularize import penalty


class Objective(Protocol):
    """The loss of a training step, and its gradients."""

    @property
    def on_device(self) -> bool:
        """Whether `differentiate` needs nothing from the host, so that a GPU can replay it."""
        ...

    def network(self, model: nn.Module) -> nn.Module:
        """The network for `differentiate`; with several processes, wrapped for them."""
        ...

    def prepare(self, step: int) -> None:
        """Prepare the batch or tasks of update `step`, a function of `step`."""
        ...

    def differentiate(self, network: nn.Module) -> Tensor:
        """Add the gradients of the prepared update's loss to the parameters; return its `tally`."""
        ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy on batches of images, plus penalties on similarities and sphere kernels."""

    runtime: Runtime
    batches: Batches | FileBatches
    terms: LossTerms = field(default_factory=LossTerms)
    compile: bool = False
    """Whether the network goes through torch.compile."""

    @property
    def on_device(self) -> bool:
        return isinstance(self.batches, Batches)

    def network(self, model: nn.Module) -> nn.Module:
        network = distributed.replicate_model(model)
        return cast(nn.Module, torch.compile(network)) if self.compile else network

    def prepare(self, step: int) -> None:
        self.batches.load(step)

    def differentiate(self, network: nn.Module) -> Tensor:
        x, y = self.batches.loaded()
        with self.runtime.autocast():
            logits = network(x)
        logits = logits.float()
        terms = self.terms
        loss = cross_entropy(logits, y, terms.label_smoothing, terms.probability_floor)
        penalties = self._penalty_terms(network)
        whole = loss + penalties  # Processes average their gradients; their shares are equal.
        if whole.requires_grad:  # False if only running statistics change.
            whole.backward()
        return tally(loss + penalties, (logits.detach().argmax(1) == y).sum(), len(y))

    def _penalty_terms(self, network: nn.Module) -> Tensor | float:
        terms, penalties = self.terms, 0.0
        if terms.penalty:
            penalties = terms.penalty * penalty(network, terms.penalty_measure)
        if terms.orthogonality:
            penalties = penalties + terms.orthogonality * orthogonality(network, unit=False)
        return penalties


def tally(loss: Tensor, correct: Tensor, images: int) -> Tensor:
    """Summed loss, correct images and images of a step, without waiting for the device.

    `correct` is NaN if a step does not count correct images.
    """
    sums = torch.stack([loss.detach() * images, correct, torch.full_like(correct, images)])
    return sums if sums.device.type == "mps" else sums.double()  # Apple's GPUs have no float64.


def cross_entropy(logits: Tensor, y: Tensor, smoothing: float, floor: float) -> Tensor:
    r"""$-\sum_j t_j \log(p_j + \text{floor})$, the mean over a batch, for smoothed targets t."""
    if not floor:
        return F.cross_entropy(logits, y, label_smoothing=smoothing)
    logs = (logits.softmax(1) + floor).log()
    return F.nll_loss(logs, y) * (1 - smoothing) - smoothing * logs.mean()

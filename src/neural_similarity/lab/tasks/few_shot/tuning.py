"""Gradient descent on a support set, one task or many at once with the same arithmetic."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_similarity.choices import require_count, require_positive
from neural_similarity.lab.data.images import seeded_generator


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings of gradient descent on a support set; the defaults are the paper's (App. A).

    The mini-batches are those of CloserLookFewShot, from which the paper takes its other results
    (https://github.com/wyharveychen/CloserLookFewShot).
    """

    lr: float = 0.01
    momentum: float = 0.9
    """Share of the last step that is kept."""
    dampening: float = 0.9
    """Share of the gradient that every step but the first leaves out."""
    weight_decay: float = 1e-3
    """Pull of parameters towards zero, which for a static M is the identity."""
    epochs: int = 100
    """Passes over the support set."""
    batch_size: int = 4
    """Images of a step; the last of a pass may have fewer."""
    seed: int = 0
    """Seed of the images' order and of the initial weights, the same for every task."""

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_positive("lr", self.lr)

    def minibatch_positions(self, count: int) -> Iterator[Tensor]:
        """The positions of every step's images, among `count` images."""
        random = seeded_generator("fine-tuning", self.seed)
        for _ in range(self.epochs):
            yield from torch.randperm(count, generator=random).split(self.batch_size)

    def first_linear(self, ways: int, features: int) -> tuple[Tensor, Tensor]:
        """Initial weight and bias of a new linear layer.

        Both are uniform like torch's, with nearly its bounds, but drawn from one stream of random
        numbers: a bias is not independent of the weights.
        """
        bias = self.first_weights(ways, features + 1)[:, 0]
        return self.first_weights(ways, features), bias

    def first_weights(self, ways: int, features: int) -> Tensor:
        """Initial weight (ways, features) of a new linear layer, drawn as torch does."""
        bound = features**-0.5
        random = seeded_generator("first weights", self.seed)
        return torch.rand(ways, features, generator=random) * 2 * bound - bound


def descend_loss(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    count: int,
    tuning: Tuning,
    factors: Sequence[float] = (),
) -> None:
    """Minimise `loss` over `parameters`, which are leaves and are updated in place.

    If `loss` is a sum over tasks with parameters of their own, each task is learned as it would be
    alone, because every update is elementwise.

    Args:
        parameters: the tensors to update.
        loss: the loss of the images at given positions.
        count: number of images in a support set.
        tuning: settings of the descent.
        factors: factors on the step size, one for each parameter, by default 1.
    """
    factors = factors or [1.0] * len(parameters)
    groups = [
        {"params": parameter, "lr": tuning.lr * factor}
        for parameter, factor in zip(parameters, factors, strict=True)
    ]
    optimizer = torch.optim.SGD(
        groups,
        lr=tuning.lr,
        momentum=tuning.momentum,
        dampening=tuning.dampening,
        weight_decay=tuning.weight_decay,
        foreach=True,
    )
    with torch.enable_grad():
        for chosen in tuning.minibatch_positions(count):
            gradients = torch.autograd.grad(loss(chosen), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

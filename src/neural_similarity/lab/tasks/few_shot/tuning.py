"""Gradient descent on a support set, one task or many at once with the same arithmetic."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_similarity.choices import require_count, require_positive
from neural_similarity.lab.data.images import generator


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the support set is learned: by default as in the paper (App. A).

    The mini-batches are those of CloserLookFewShot, from which the paper's other numbers come
    (https://github.com/wyharveychen/CloserLookFewShot).

    Raises:
        ValueError: epochs, images of a step or the step size are not positive.
    """

    lr: float = 0.01
    momentum: float = 0.9
    """Share of the last step that is kept."""
    dampening: float = 0.9
    """Share of the gradient that every step but the first leaves out."""
    weight_decay: float = 1e-3
    """Pull towards zero: of a static M's raw numbers, towards the identity."""
    epochs: int = 100
    """Passes over the support set."""
    batch_size: int = 4
    """Images of a step; the last of a pass may have fewer."""
    seed: int = 0
    """Seed of the images' order and of the first weights, the same for every task."""

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_positive("lr", self.lr)

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Positions of the images of every step, of `count` images."""
        random = generator("fine-tuning", self.seed)
        for _ in range(self.epochs):
            yield from torch.randperm(count, generator=random).split(self.batch_size)

    def first_linear(self, ways: int, features: int) -> tuple[Tensor, Tensor]:
        """Initial weight and bias of a new linear layer.

        Both are uniform as torch's, of nearly its bounds, but from one stream of numbers: a bias is
        not independent of the weights.
        """
        bias = self.first_weights(ways, features + 1)[:, 0]
        return self.first_weights(ways, features), bias

    def first_weights(self, ways: int, features: int) -> Tensor:
        """Initial weight (ways, features) of a new linear layer, drawn as torch does."""
        bound = features**-0.5
        random = generator("first weights", self.seed)
        return torch.rand(ways, features, generator=random) * 2 * bound - bound


def descend(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    count: int,
    tuning: Tuning,
    factors: Sequence[float] = (),
) -> None:
    """Update `parameters`, leaves, in place.

    Where `loss` is a sum over tasks with parameters of their own, each task moves as it would
    alone: every update is by element.

    Args:
        parameters: what moves.
        loss: of the images at given positions.
        count: images of a support set.
        tuning: the steps.
        factors: on the step size of each of the parameters, by default 1.
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
        for chosen in tuning.minibatches(count):
            gradients = torch.autograd.grad(loss(chosen), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

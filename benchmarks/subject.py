"""What is measured: a module with its inputs, and what it must compute."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import DynamicSimilarity, StaticSimilarity

Oracle = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One of the things that are compared.

    Gradients are taken by its inputs that require them and by its parameters.
    """

    name: str
    """What it is called in tables."""
    module: nn.Module
    """What is called."""
    inputs: tuple[Tensor, ...]
    """With what; the first dimension of each is that of the images."""
    oracle: Oracle
    """What it must equal: a function of its float64 copy and of its inputs in float64."""
    separable: bool = True
    """Whether every image's output depends on that image alone."""
    smooth: bool = True
    """Whether gradients change little with rounding: before a ReLU it flips signs."""


@dataclass(frozen=True)
class Absent:
    """A subject that is not measured here."""

    name: str
    """What it is called in tables."""
    reason: str
    """Why."""


class Operator(nn.Module):
    """A function of input, kernel and M, whose kernel is a parameter.

    M is an input, one per position, or given at once and a parameter too.
    """

    def __init__(self, function: Callable[..., Tensor], weight: Tensor, m: Tensor | None = None):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(weight)
        self.m = None if m is None else nn.Parameter(m)

    def forward(self, x: Tensor, m: Tensor | None = None) -> Tensor:
        """The output for an input and M."""
        return self.function(x, self.weight, self.m if m is None else m)


class Placed(nn.Module):
    """A network on a device, in a precision and a layout, as it is trained."""

    def __init__(self, network: nn.Module, runtime: Runtime):
        super().__init__()
        self.network = runtime.place(network)
        self.runtime = runtime

    def forward(self, x: Tensor) -> Tensor:
        """The output under the runtime's autocast; in float64, for checks, without."""
        if x.dtype == torch.float64:
            return self.network(x)
        with self.runtime.autocast():
            return self.network(x)


def learn(model: nn.Module) -> None:
    """Move every similarity of `model` off the identity, in place, as if it had learned."""
    for part in model.modules():
        if isinstance(part, StaticSimilarity):
            nn.init.normal_(part.raw, std=0.1)
        elif isinstance(part, DynamicSimilarity) and part.gain is not None:
            nn.init.normal_(part.gain, std=0.1)

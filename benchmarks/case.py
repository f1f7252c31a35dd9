"""What is compared: at what size, with which operands, and as which modules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neural_similarity.lab.train import Runtime
from neural_similarity.nn import DynamicSimilarity, StaticSimilarity

KINDS = ("diagonal", "full")
KERNEL, PADDING, TAPS = 3, 1, 9
SEED = 0


class Operands(NamedTuple):
    """What an operator is called with, maps in the runtime's layout.

    Of the case's dtype but for M, which is float32 as predictors and static layers have it.
    """

    x: Tensor
    """(n, c, h, w); requires a gradient, as `dynamic` does."""
    weight: nn.Parameter
    """(c, c, 3, 3)"""
    dynamic: Tensor
    """(n, 9, h, w) or (n, 81, h, w)"""
    static: nn.Parameter
    """(9,) or (9, 9)"""
    grad: Tensor
    """Of the output."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Where, at what sizes and how long things are compared."""

    runtime: Runtime
    kind: str = "diagonal"
    """Of M, or which network."""
    batch: int = 128
    channels: int = 3
    size: int = 32
    """Height and width of maps or images."""
    filters: int = 0
    """Of an operator; 0: as many as channels."""
    groups: int = 1
    kernel: int = KERNEL
    """Height and width of an operator's kernel."""
    width: float = 1.0
    """Factor on a network's filters."""
    rounds: int = 15
    attempts: int = 3
    threads: tuple[int, ...] = (1,)
    """Numbers of CPU threads, each apart."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.runtime.precision == "bf16" else torch.float32

    @property
    def layout(self) -> str:
        return "channels last" if self.runtime.channels_last else "NCHW"

    @property
    def taps(self) -> tuple[int, ...]:
        """Shape of M at one position."""
        return (self.kernel**2,) * (1 if self.kind == "diagonal" else 2)

    def images(self, count: int) -> Tensor:
        """Random images, or maps, the same every time."""
        with fixed_seed():
            images = torch.randn(count, self.channels, self.size, self.size)
        return self.runtime.place_images(images)

    @cached_property
    def operands(self) -> Operands:
        """Random operands of a convolution that keeps the size of its map."""
        n, c, s, dtype = self.batch, self.channels, self.size, self.dtype
        filters, each, k = self.filters or c, c // self.groups, self.kernel
        place = self.runtime.place_images
        with fixed_seed():
            x, grad = (place(torch.randn(n, size, s, s)).to(dtype) for size in (c, filters))
            kernel = torch.randn(filters, each, k, k) / sqrt(k * k * each)
            dynamic = place(torch.randn(n, prod(self.taps), s, s))
            static = nn.Parameter(torch.randn(self.taps).to(x.device))
        weight = nn.Parameter(place(kernel).to(dtype))
        return Operands(x.requires_grad_(), weight, dynamic.requires_grad_(), static, grad)


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Within, the same random numbers every time; outside, those that would have come."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A module with its inputs, and what it must compute.

    Gradients are taken by its inputs that require them and by its parameters.
    """

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    oracle: Callable[..., Tensor]
    """What it must equal: a function of its float64 copy and of its inputs in float64."""
    smooth: bool = True
    """Whether gradients change little with rounding: before a ReLU it flips signs."""
    may_fail: bool = False
    """As of an `Entrant`."""


class Operator(nn.Module):
    """A function of input, kernel and M, whose kernel is a parameter."""

    def __init__(self, function: Callable[..., Tensor], weight: nn.Parameter):
        super().__init__()
        self.function, self.weight = function, weight

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        return self.function(x, self.weight, m)


class Placed(nn.Module):
    """A network on a device, in a precision and a layout, as it is trained."""

    def __init__(self, network: nn.Module, runtime: Runtime):
        super().__init__()
        self.network = runtime.place_model(network)
        self.runtime = runtime

    def forward(self, x: Tensor) -> Tensor:
        """The output under the runtime's autocast; in float64, for checks, without."""
        if x.dtype == torch.float64:
            return self.network(x)
        with self.runtime.autocast():
            return self.network(x)


def move_similarities(model: nn.Module) -> nn.Module:
    """Move every similarity of `model` off the identity, in place, as if it had learned."""
    for part in model.modules():
        if isinstance(part, StaticSimilarity):
            nn.init.normal_(part.raw, std=0.1)
        elif isinstance(part, DynamicSimilarity) and part.gain is not None:
            nn.init.normal_(part.gain, std=0.1)
    return model

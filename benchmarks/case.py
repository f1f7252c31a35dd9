"""A size to measure at, and the operands of an operator of that size."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neural_similarity.choices import require_known, require_least
from neural_similarity.lab.train.runtime import Precision

Kind = Literal["diagonal", "full"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
KERNEL, PADDING, TAPS = 3, 1, 9
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A 3×3 convolution of stride 1 that keeps the size of its map."""

    kind: Kind
    """Of M."""
    dtype: Precision
    """Of input and kernel: "fp32" or "bf16"; a predicted M is float32, as in the layers."""
    batch: int
    """Images."""
    channels: int
    """Of input and output."""
    size: int
    """Height and width."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where it is computed."""

    def __post_init__(self) -> None:
        require_known("dtype", self.dtype, DTYPES)
        for name in ("batch", "channels", "size"):
            require_least(name, getattr(self, name))

    @property
    def positions(self) -> int:
        """Output positions of the whole batch."""
        return self.batch * self.size**2

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        return DTYPES[self.dtype]

    @property
    def taps(self) -> tuple[int, ...]:
        """Shape of M at one position."""
        return (TAPS,) if self.kind == "diagonal" else (TAPS, TAPS)


class Operands(NamedTuple):
    """What an operator is called with; maps are channels last."""

    x: Tensor
    """Input (n, c, h, w), of the case's dtype; requires a gradient."""
    weight: Tensor
    """Kernel (c, c, 3, 3), of the case's dtype."""
    dynamic: Tensor
    """M as a predictor puts it out, float32 (n, 9, h, w) or (n, 81, h, w); requires a gradient."""
    static: Tensor
    """One M, float32 (9,) or (9, 9)."""
    grad: Tensor
    """Gradient of the output, of the case's dtype."""


def operands(case: Case) -> Operands:
    """Random operands, the same at every call."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator).to(case.device)
        return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values

    n, c, s, dtype = case.batch, case.channels, case.size, case.torch_dtype
    scalars = TAPS if case.kind == "diagonal" else TAPS**2
    x, grad = normal(n, c, s, s).to(dtype), normal(n, c, s, s).to(dtype)
    weight = (normal(c, c, KERNEL, KERNEL) / sqrt(TAPS * c)).to(dtype)
    dynamic, static = normal(n, scalars, s, s), normal(*case.taps)
    return Operands(x.requires_grad_(), weight, dynamic.requires_grad_(), static, grad)


@contextmanager
def seeded() -> Iterator[None]:
    """Within, the same random numbers every time; outside, those that would have come."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield

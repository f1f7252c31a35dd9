"""Structures of M: modules that map raw numbers to a matrix, zero to the identity."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.nn.geometry import Geometry


class StructureModule(nn.Module):
    """Maps raw (n, scalars, *positions) to M (n, K, *positions) or (n, K, K, *positions)."""

    def __init__(self, scalars: int):
        super().__init__()
        self.scalars = scalars

    def identity(self) -> Float[Tensor, " scalars"]:
        """The raw numbers for which M is the identity."""
        return torch.zeros(self.scalars)


@dataclass(frozen=True)
class Structure(ABC):
    """A description that builds a `StructureModule` for a layer.

    `contains_identity`: M can be I, so that a layer may start as the one it replaces.
    `exact_gradient`: the gradient of raw is the derivative of M, not a straight-through estimate.
    """

    residual: bool = True
    contains_identity: ClassVar[bool] = True
    exact_gradient: ClassVar[bool] = True

    @abstractmethod
    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""


@dataclass(frozen=True)
class Diagonal(Structure):
    """M = diag(m), one number per tap: K scalars. DNS in the paper, §3.1.

    m = 1 + raw, or with `residual=False` m = raw.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Diagonal(geometry.taps, self.residual)


@dataclass(frozen=True)
class Full(Structure):
    """M any K×K matrix: K² scalars. UNS in the paper, §3.1.

    M = I + raw, or with `residual=False` M = raw: a dynamic filter network.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Full(geometry.taps, self.residual)


class _Diagonal(StructureModule):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps)
        self.residual = residual

    def forward(self, raw: Tensor) -> Tensor:
        return raw + 1 if self.residual else raw

    def identity(self) -> Tensor:
        return torch.zeros(self.scalars) if self.residual else torch.ones(self.scalars)


class _Full(StructureModule):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps * taps)
        self.taps = taps
        self.residual = residual

    def forward(self, raw: Tensor) -> Tensor:
        m = raw.unflatten(1, (self.taps, self.taps))
        if not self.residual:
            return m
        eye = torch.eye(self.taps, dtype=raw.dtype, device=raw.device)
        return m + eye.view(self.taps, self.taps, *[1] * (raw.dim() - 2))

    def identity(self) -> Tensor:
        return super().identity() if self.residual else torch.eye(self.taps).flatten()

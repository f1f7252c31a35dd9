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


@dataclass(frozen=True)
class Symmetric(Structure):
    """M = Mᵀ: K(K + 1)/2 scalars, the lower triangle row by row. Paper, §3.1.

    M = I + S, or with `residual=False` M = S, for the symmetric S of the raw numbers.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Symmetric(geometry.taps, self.residual)


@dataclass(frozen=True)
class PositiveSemidefinite(Structure):
    """M = L Lᵀ with L lower triangular: K(K + 1)/2 scalars, row by row. Paper, §3.1.

    L = I + raw, or with `residual=False` L = raw. Every such M is symmetric with no negative
    eigenvalue, and every symmetric positive semi-definite matrix is such an M.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _PositiveSemidefinite(geometry.taps, self.residual)


class _Diagonal(StructureModule):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps)
        self.residual = residual

    def forward(self, raw: Tensor) -> Tensor:
        return raw + 1 if self.residual else raw

    def identity(self) -> Tensor:
        return torch.zeros(self.scalars) if self.residual else torch.ones(self.scalars)


class _Matrix(StructureModule):
    """A K×K matrix of some of the raw numbers, and the identity where there is a residual."""

    def __init__(self, taps: int, residual: bool, scalars: int):
        super().__init__(scalars)
        self.taps = taps
        self.residual = residual

    def with_identity(self, matrix: Tensor) -> Tensor:
        """`matrix` (n, K, K, *positions), plus I where there is a residual."""
        if not self.residual:
            return matrix
        eye = torch.eye(self.taps, dtype=matrix.dtype, device=matrix.device)
        return matrix + eye.view(self.taps, self.taps, *[1] * (matrix.dim() - 3))


class _Full(_Matrix):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps, residual, taps * taps)

    def forward(self, raw: Tensor) -> Tensor:
        return self.with_identity(raw.unflatten(1, (self.taps, self.taps)))

    def identity(self) -> Tensor:
        return super().identity() if self.residual else torch.eye(self.taps).flatten()


class _Triangular(_Matrix):
    """Places the raw numbers in the lower triangle of a K×K matrix, row by row."""

    def __init__(self, taps: int, residual: bool):
        super().__init__(taps, residual, taps * (taps + 1) // 2)
        self.rows, self.columns = torch.tril_indices(taps, taps).tolist()

    def lower(self, raw: Tensor) -> Tensor:
        """(n, scalars, *positions) as (n, K, K, *positions), zero above the diagonal."""
        matrix = raw.new_zeros(raw.shape[0], self.taps, self.taps, *raw.shape[2:])
        matrix[:, self.rows, self.columns] = raw
        return matrix

    def identity(self) -> Tensor:
        if self.residual:
            return super().identity()
        return torch.eye(self.taps)[self.rows, self.columns]


class _Symmetric(_Triangular):
    def forward(self, raw: Tensor) -> Tensor:
        lower = self.lower(raw)
        diagonal = torch.eye(self.taps, dtype=raw.dtype, device=raw.device)
        diagonal = diagonal.view(self.taps, self.taps, *[1] * (raw.dim() - 2))
        return self.with_identity(lower + lower.transpose(1, 2) - lower * diagonal)


class _PositiveSemidefinite(_Triangular):
    def forward(self, raw: Tensor) -> Tensor:
        lower = self.with_identity(self.lower(raw))
        return torch.einsum("npr...,nqr...->npq...", lower, lower)

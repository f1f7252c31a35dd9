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

    contains_identity: ClassVar[bool] = True
    exact_gradient: ClassVar[bool] = True

    @property
    def zero_is_identity(self) -> bool:
        """Whether raw numbers of zero mean I, as a gated prediction needs."""
        return self.contains_identity

    @abstractmethod
    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""


@dataclass(frozen=True)
class _Residual(Structure):
    """A structure that adds the identity, unless told not to."""

    residual: bool = True

    @property
    def zero_is_identity(self) -> bool:
        return self.residual


@dataclass(frozen=True)
class Diagonal(_Residual):
    """M = diag(m), one number per tap: K scalars. DNS in the paper, §3.1.

    m = 1 + raw, or with `residual=False` m = raw.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Diagonal(geometry.taps, self.residual)


@dataclass(frozen=True)
class Full(_Residual):
    """M any K×K matrix: K² scalars. UNS in the paper, §3.1.

    M = I + raw, or with `residual=False` M = raw: a dynamic filter network.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Full(geometry.taps, self.residual)


@dataclass(frozen=True)
class Symmetric(_Residual):
    """M = Mᵀ: K(K + 1)/2 scalars, the lower triangle row by row. Paper, §3.1.

    M = I + S, or with `residual=False` M = S, for the symmetric S of the raw numbers.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _Symmetric(geometry.taps, self.residual)


@dataclass(frozen=True)
class PositiveSemidefinite(_Residual):
    """M = L Lᵀ with L lower triangular: K(K + 1)/2 scalars, row by row. Paper, §3.1.

    L = I + raw, or with `residual=False` L = raw. Every such M is symmetric with no negative
    eigenvalue, and every symmetric positive semi-definite matrix is such an M.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return _PositiveSemidefinite(geometry.taps, self.residual)


@dataclass(frozen=True)
class Masked(Structure):
    """M = D R: which taps the kernel has (D, K numbers of the layer's own) and R of `structure`.

    D is Boolean and diagonal, D = 1[D_r > threshold]; the output and the gradient of R see D only,
    and the real-valued D_r takes D's gradient (straight-through). D_r starts at 1, so D = I, and at
    least one tap stays: the largest. D belongs to the layer also where R is predicted. Learns the
    kernel's shape with the similarity: paper, §3.5, Eq. 4-5, "(J)" in Table 2, which leaves open
    the threshold, the start and the decay of D_r (none here, see `ns.parameter_groups`).

    Attributes:
        structure: Of R.
        threshold: The value above which a tap is kept, alpha in the paper.
        continuous: D = D_r, a spatial mask without a threshold.
    """

    structure: Structure
    threshold: float = 0.5
    continuous: bool = False
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self):
        if isinstance(self.structure, Masked):
            raise ValueError(f"`structure` must not be masked itself, got {self.structure!r}")

    @property
    def zero_is_identity(self) -> bool:
        """Whether raw numbers of zero mean I while D is I."""
        return self.structure.zero_is_identity

    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry."""
        return MaskedModule(self, geometry)


class MaskedModule(StructureModule):
    """D R; `mask` is the real-valued D_r, (K,)."""

    def __init__(self, spec: Masked, geometry: Geometry):
        inner = spec.structure.build(geometry)
        super().__init__(inner.scalars)
        self.inner = inner
        self.threshold = spec.threshold
        self.continuous = spec.continuous
        self.mask = nn.Parameter(torch.ones(geometry.taps))

    def kernel_shape(self) -> Float[Tensor, " taps"]:
        """D's diagonal; its gradient goes to D_r unchanged."""
        if self.continuous:
            return self.mask
        real = self.mask.detach()
        kept = (real > self.threshold) | (real == real.max())
        return kept.to(real.dtype) + (self.mask - real)

    def forward(self, raw: Tensor) -> Tensor:
        """M of the raw numbers of R."""
        m = self.inner(raw)
        return m * self.kernel_shape().to(m.dtype).view(-1, *[1] * (m.dim() - 2))

    def identity(self) -> Tensor:
        """The raw numbers for which R is the identity."""
        return self.inner.identity()


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

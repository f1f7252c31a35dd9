"""Structures of M: modules that map raw parameters to a matrix, zero to the identity."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import pi
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.choices import require_count, require_flag
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.spec import Spec
from neural_similarity.ops.blocks import Blocks
from neural_similarity.ops.pointwise import apply_gain
from neural_similarity.ops.tracing import only_torch_ops


class StructureModule(nn.Module):
    """Maps raw (n, scalars, *positions) to M (n, K, *positions) or (n, K, K, *positions).

    With `blocks` there is one axis more before the taps, as in `ns.functional.similarity_conv2d`.
    """

    blocks: Blocks | None = None

    def __init__(self, scalars: int):
        super().__init__()
        self.scalars = scalars

    def predicted(self, raw: Tensor, gain: Tensor) -> Tensor:
        """M of predicted values (n, scalars, *positions) times gains (scalars,)."""
        return self(apply_gain(raw, gain, 0))

    def initial(self, block: int = 0) -> Float[Tensor, " scalars"]:
        """The initial raw parameters: those of the identity, if the structure has it.

        `block` is the index of a block in an unshared M, whose blocks may start differently.
        """
        del block
        return torch.zeros(self.scalars)


@dataclass(frozen=True, repr=False)
class Structure(Spec, ABC):
    """A description that builds a `StructureModule` for a layer.

    `dynamic` says whether M may be predicted at every position.
    """

    dynamic: ClassVar[bool] = True

    def contains_identity(self, geometry: Geometry) -> bool:
        """Whether M can be I in a layer of this geometry, and then starts there.

        The laws (`ns.testing`) check this claim; `ns.convert` does not rely on it.
        """
        del geometry
        return True

    @property
    def exact_gradient(self) -> bool:
        """Whether the gradient of raw is M's derivative, not a straight-through estimate."""
        return True

    @property
    def zero_is_identity(self) -> bool:
        """Whether raw zeros mean I (if M can be I), as predictions times gains require."""
        return True

    @property
    def shared(self) -> bool:
        """Whether the layers of one `ns.sharing()` share their parameters."""
        return False

    @abstractmethod
    def build(self, geometry: Geometry) -> StructureModule:
        """The module for a layer of this geometry.

        Raises:
            ValueError: the structure does not fit the layer.
        """


@dataclass(frozen=True, repr=False)
class Wrapper(Structure):
    """A structure made of another one."""

    structure: Structure

    def contains_identity(self, geometry: Geometry) -> bool:
        """Whether the inner structure can be I."""
        return self.structure.contains_identity(geometry)

    @property
    def exact_gradient(self) -> bool:
        return self.structure.exact_gradient

    @property
    def zero_is_identity(self) -> bool:
        return self.structure.zero_is_identity

    @property
    def shared(self) -> bool:
        return self.structure.shared

    def require_kinds(self, *kinds: type[Structure]) -> None:
        """Raise a `ValueError` unless the inner structure is of these kinds."""
        if not isinstance(self.structure, kinds):
            known = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"`structure` of {type(self).__name__} must be one of {known}, "
                f"got {self.structure!r}"
            )


@dataclass(frozen=True, repr=False)
class _Residual(Structure):
    """A structure that adds the identity, unless `residual` is False."""

    residual: bool = True

    def __post_init__(self):
        require_flag("residual", self.residual)

    @property
    def zero_is_identity(self) -> bool:
        return self.residual


@dataclass(frozen=True, repr=False)
class Diagonal(_Residual):
    """M = diag(m), one number per tap: K scalars. DNS in the paper, §3.1.

    m = 1 + raw, or with `residual=False` m = raw.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        return DiagonalModule(geometry.taps, self.residual)


@dataclass(frozen=True, repr=False)
class Full(_Residual):
    """M any K×K matrix: K² scalars. UNS in the paper, §3.1.

    M = I + raw, or with `residual=False` M = raw. For a kernel W of c channels and o filters, the
    kernels W M span at most K² of o·c·K dimensions: 81 of 216 from 4 to 6 channels with 3×3 taps. A
    dynamic filter network, which predicts any kernel (§6), needs an M over channels as well, such
    as `Unstructured`.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        return FullModule(geometry.taps, self.residual)


@dataclass(frozen=True, repr=False)
class LowRank(Structure):
    r"""M = I + U Vᵀ of rank r: 2·r·K scalars, 18 for 3×3 taps and r = 1 where `Full` has 81; ours.

    U is learned from zero, where M = I, and V from the first r vectors of the cosine transform:
    from zero both would stay there.

    Attributes:
        rank: r, at most K.

    Raises:
        ValueError: `rank` is not a positive integer; or (when built) it is above K.
    """

    rank: int = 1

    def __post_init__(self):
        require_count("rank", self.rank)

    def build(self, geometry: Geometry) -> StructureModule:
        if self.rank > geometry.taps:
            raise ValueError(f"`rank` must be at most the {geometry.taps} taps, got {self.rank}")
        return _LowRank(geometry.taps, self.rank)


@dataclass(frozen=True, repr=False)
class Symmetric(_Residual):
    """M = Mᵀ: K(K + 1)/2 scalars, the lower triangle row by row. Paper, §3.1, 3.4.

    M = I + S, or with `residual=False` M = S, for the symmetric S of the raw parameters.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        return _Symmetric(geometry.taps, self.residual)


@dataclass(frozen=True, repr=False)
class PositiveSemidefinite(_Residual):
    """M = L Lᵀ with L lower triangular: K(K + 1)/2 scalars, row by row. Paper, §3.1, 3.4.

    L = I + raw, or with `residual=False` L = raw. Every such M is symmetric with no negative
    eigenvalue, and every symmetric positive semi-definite matrix is such an M.
    """

    def build(self, geometry: Geometry) -> StructureModule:
        return _PositiveSemidefinite(geometry.taps, self.residual)


class DiagonalModule(StructureModule):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps)
        self.residual = residual

    def forward(self, raw: Tensor) -> Tensor:
        return raw + 1 if self.residual else raw

    def predicted(self, raw: Tensor, gain: Tensor) -> Tensor:
        return apply_gain(raw, gain, int(self.residual))

    def initial(self, block: int = 0) -> Tensor:
        return torch.zeros(self.scalars) if self.residual else torch.ones(self.scalars)


class _Matrix(StructureModule):
    """A K×K matrix made of the raw parameters, plus the identity if there is a residual."""

    def __init__(self, taps: int, residual: bool, scalars: int):
        super().__init__(scalars)
        self.taps = taps
        self.residual = residual

    def with_identity(self, matrix: Tensor) -> Tensor:
        """`matrix` (n, K, K, *positions), plus I if there is a residual."""
        if not self.residual:
            return matrix
        eye = torch.eye(self.taps, dtype=matrix.dtype, device=matrix.device)
        return matrix + eye.view(self.taps, self.taps, *[1] * (matrix.dim() - 3))


class FullModule(_Matrix):
    def __init__(self, taps: int, residual: bool):
        super().__init__(taps, residual, taps * taps)

    def forward(self, raw: Tensor) -> Tensor:
        return self.with_identity(raw.unflatten(1, (self.taps, self.taps)))

    def predicted(self, raw: Tensor, gain: Tensor) -> Tensor:
        if only_torch_ops():  # without writes to a part of M
            return super().predicted(raw, gain)
        m = apply_gain(raw, gain, (self.taps + 1) * self.residual)
        return m.unflatten(1, (self.taps, self.taps))

    def initial(self, block: int = 0) -> Tensor:
        return super().initial() if self.residual else torch.eye(self.taps).flatten()


class _LowRank(_Matrix):
    def __init__(self, taps: int, rank: int):
        super().__init__(taps, True, 2 * rank * taps)
        self.rank = rank

    def forward(self, raw: Tensor) -> Tensor:
        u, v = raw.unflatten(1, (2, self.rank, self.taps)).unbind(1)
        v = v + self._start(raw).view(self.rank, self.taps, *[1] * (raw.dim() - 2))
        return self.with_identity(torch.einsum("nrp...,nrq...->npq...", u, v))

    def _start(self, like: Tensor) -> Tensor:
        """The first vectors of the cosine transform, orthogonal and of length one."""
        number = torch.arange(self.taps, dtype=like.dtype, device=like.device)
        waves = torch.outer(number[: self.rank], number + 0.5) * (pi / self.taps)
        return nn.functional.normalize(waves.cos(), dim=1)


class _Triangular(_Matrix):
    """Places the raw parameters in the lower triangle of a K×K matrix, row by row."""

    def __init__(self, taps: int, residual: bool):
        super().__init__(taps, residual, taps * (taps + 1) // 2)

    def lower_triangle(self, raw: Tensor) -> Tensor:
        """(n, scalars, *positions) as (n, K, K, *positions), zero above the diagonal."""
        matrix = raw.new_zeros(raw.shape[0], self.taps, self.taps, *raw.shape[2:])
        rows, columns = torch.tril_indices(self.taps, self.taps, device=raw.device)
        matrix[:, rows, columns] = raw
        return matrix

    def initial(self, block: int = 0) -> Tensor:
        if self.residual:
            return super().initial()
        rows, columns = torch.tril_indices(self.taps, self.taps)
        return torch.eye(self.taps)[rows, columns]


class _Symmetric(_Triangular):
    def forward(self, raw: Tensor) -> Tensor:
        lower = self.lower_triangle(raw)
        diagonal = torch.eye(self.taps, dtype=raw.dtype, device=raw.device)
        diagonal = diagonal.view(self.taps, self.taps, *[1] * (raw.dim() - 2))
        return self.with_identity(lower + lower.transpose(1, 2) - lower * diagonal)


class _PositiveSemidefinite(_Triangular):
    def forward(self, raw: Tensor) -> Tensor:
        lower = self.with_identity(self.lower_triangle(raw))
        return torch.einsum("npr...,nqr...->npq...", lower, lower)

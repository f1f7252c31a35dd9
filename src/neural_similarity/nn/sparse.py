"""Sparse structures of M: masks of taps, selections, shifts, and the few largest entries."""

from dataclasses import dataclass, field
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.choices import require_count, require_flag, require_positive
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.structure import (
    Diagonal,
    Full,
    PositiveSemidefinite,
    Structure,
    StructureModule,
    Symmetric,
    Wrapper,
)


@dataclass(frozen=True, repr=False)
class Masked(Wrapper):
    """M = D R: D selects the kernel's taps, by K parameters of the layer; R has `structure`.

    D is Boolean and diagonal, D = 1[D_r > threshold]; the output and the gradient of R see D only,
    and the real-valued D_r takes D's gradient (straight-through). D_r starts at 1, so D = I, and at
    least one tap stays: the largest. D belongs to the layer also where R is predicted. Learns the
    kernel's shape with the similarity: paper, §3.5, Eq. 4-5, "(J)" in Table 2, which leaves open
    the threshold, the start and the decay of D_r (none here, see `ns.parameter_groups`).

    Attributes:
        structure: Structure of R.
        threshold: The value above which a tap is kept, alpha in the paper.
        continuous: D = D_r, a spatial mask without a threshold.
        rate: Factor on the gradient of D_r, which thereby has a step size of its own, η of Eq. 5;
            1 where D is continuous.

    Raises:
        ValueError: `structure` cannot be masked, `threshold` is not a finite number, or `rate`
            is not positive, or not 1 where D is continuous.
    """

    threshold: float = 0.5
    continuous: bool = False
    rate: float = 1.0

    def __post_init__(self):
        self.require_kinds(*_MASKABLE)
        require_positive("rate", self.rate)
        require_flag("continuous", self.continuous)
        if self.continuous and self.rate != 1:
            raise ValueError(f"`rate` must be 1 where D is continuous, got {self.rate!r}")
        if not (isinstance(self.threshold, int | float) and isfinite(self.threshold)):
            raise ValueError(f"`threshold` must be a finite number, got {self.threshold!r}")

    @property
    def exact_gradient(self) -> bool:
        """Whether there is no threshold, and R's gradient is exact."""
        return self.continuous and self.structure.exact_gradient

    def build(self, geometry: Geometry) -> StructureModule:
        return MaskedModule(self, geometry)


@dataclass(frozen=True, repr=False)
class Dilation(Wrapper):
    """M = D R for the fixed D that keeps every `rate`-th tap: a dilated kernel. Paper, §3.4.

    R, of `structure`, starts at I, where the layer is the convolution of the kept taps at that
    dilation. A kernel of k taps along a dimension keeps (k - 1)/rate + 1 of them. As many scalars
    as R has.

    Raises:
        ValueError: `structure` cannot be masked, or `rate` is not positive or (when
            built) does not divide k - 1.
    """

    structure: Structure = field(default_factory=Diagonal)
    rate: int | tuple[int, ...] = 2

    def __post_init__(self):
        self.require_kinds(*_MASKABLE)
        for rate in self.rate if isinstance(self.rate, tuple) else (self.rate,):
            require_count("rate", rate)

    def contains_identity(self, geometry: Geometry) -> bool:
        """Whether the pattern keeps every tap."""
        taps = self.kept_taps(geometry)
        return bool(taps.all()) and self.structure.contains_identity(geometry)

    def kept_taps(self, geometry: Geometry) -> Float[Tensor, " taps"]:
        """The diagonal of D: 1 for taps that are kept."""
        size = geometry.kernel_size
        rates = (self.rate,) * len(size) if isinstance(self.rate, int) else self.rate
        fits = len(rates) == len(size) and all(
            (k - 1) % rate == 0 for k, rate in zip(size, rates, strict=True)
        )
        if not fits:
            raise ValueError(
                f"`rate` of a dilation must divide the kernel size {size} less one, "
                f"got {self.rate!r}"
            )
        pattern = torch.zeros(size, device="cpu")
        pattern[tuple(slice(None, None, rate) for rate in rates)] = 1
        return pattern.flatten()

    def build(self, geometry: Geometry) -> StructureModule:
        kept = self.kept_taps(geometry).nonzero().flatten().tolist()
        return _Dilation(kept, self.structure.build(geometry))


@dataclass(frozen=True, repr=False)
class Sparse(Wrapper):
    """M = R with all but the `keep` largest entries set to zero. Hard sparsity, paper, §3.4.

    Entries compete by magnitude, at each position where M is predicted. Every entry of R
    takes the gradient of M (straight-through), so that dropped entries can return. Contains the
    identity if `keep` is at least K. As many scalars as R has.

    Attributes:
        structure: Structure of R, diagonal or full.
        keep: Number of entries that stay.

    Raises:
        ValueError: `structure` is another one, or `keep` is not positive or (when built) exceeds
            the number of R's entries.
    """

    structure: Structure = field(default_factory=Full)
    keep: int = 9

    def __post_init__(self):
        self.require_kinds(Diagonal, Full)
        require_count("keep", self.keep)

    @property
    def exact_gradient(self) -> bool:
        return False

    def contains_identity(self, geometry: Geometry) -> bool:
        """Whether at least as many entries are kept as the kernel has taps."""
        return self.keep >= geometry.taps

    def build(self, geometry: Geometry) -> StructureModule:
        inner = self.structure.build(geometry)
        if self.keep > inner.scalars:
            raise ValueError(
                f"`keep` must be at most the {inner.scalars} entries of {self.structure!r} for a "
                f"kernel of {geometry.taps} taps, got {self.keep}"
            )
        return _Sparse(self.keep, inner)


@dataclass(frozen=True, repr=False)
class Select(Structure):
    """Each kernel tap meets the patch tap of its highest score only: K² scores. Not in the paper.

    Row p of M is one-hot at argmax_q S_pq for scores S = I + raw, which take the gradient of M
    (straight-through). Starts at the identity.
    """

    @property
    def exact_gradient(self) -> bool:
        return False

    def build(self, geometry: Geometry) -> StructureModule:
        return _Select(geometry.taps)


@dataclass(frozen=True, repr=False)
class Shift(Structure):
    """M has a single 1, at the highest of K² scores: M = e_p e_qᵀ. Sparsity-one, paper, §3.4.

    With a block for every channel, `Unshared(Shift(), channels="each")`, each channel is shifted
    by one tap and then multiplied by one entry of the kernel: the shift operation (Wu et al., CVPR
    2018, https://arxiv.org/abs/1711.08141) and a 1×1 convolution, in one kernel.
    Block b starts at patch tap b mod K and at the kernel's centre tap. Scores take the gradient of
    M (straight-through). Does not contain the identity.
    """

    @property
    def exact_gradient(self) -> bool:
        return False

    @property
    def zero_is_identity(self) -> bool:
        return False

    def contains_identity(self, geometry: Geometry) -> bool:
        """Whether the kernel has a single tap."""
        return geometry.taps == 1

    def build(self, geometry: Geometry) -> StructureModule:
        return _Shift(geometry.taps)


class _Around(StructureModule):
    """Wraps the module of R, with its raw parameters and their initial values."""

    def __init__(self, inner: StructureModule):
        super().__init__(inner.scalars)
        self.inner = inner

    def initial(self, block: int = 0) -> Tensor:
        """The initial raw parameters of R."""
        return self.inner.initial(block)


class MaskedModule(_Around):
    """D R; `mask` is the real-valued D_r, (K,)."""

    def __init__(self, spec: Masked, geometry: Geometry):
        super().__init__(spec.structure.build(geometry))
        self.threshold = spec.threshold
        self.continuous = spec.continuous
        self.rate = spec.rate
        self.mask = nn.Parameter(torch.ones(geometry.taps))

    def reset_parameters(self) -> None:
        """Reset the mask: every tap is kept."""
        nn.init.ones_(self.mask)

    def kernel_shape(self) -> Float[Tensor, " taps"]:
        """D's diagonal; its gradient goes to D_r, times the rate."""
        if self.continuous:
            return self.mask
        real = self.mask.detach()
        above = (real > self.threshold) | (real == real.max())
        return _straight_through(above.to(real.dtype), self.rate * self.mask)

    def forward(self, raw: Tensor) -> Tensor:
        """M = D R from the raw parameters of R."""
        m, shape = self.inner(raw), self.kernel_shape()
        return m * shape.to(m.dtype).view(-1, *[1] * (m.dim() - 2))


class _Dilation(_Around):
    """D R; `kept` are the taps where D is one."""

    def __init__(self, kept: list[int], inner: StructureModule):
        super().__init__(inner)
        self.kept = kept

    def forward(self, raw: Tensor) -> Tensor:
        # A tensor of D would come from the host, which breaks the capture of a CUDA graph.
        rows = self.inner(raw).unbind(1)
        return torch.stack(
            [row if tap in self.kept else torch.zeros_like(row) for tap, row in enumerate(rows)], 1
        )


class _Sparse(_Around):
    """R with all but its `keep` largest entries set to zero."""

    def __init__(self, keep: int, inner: StructureModule):
        super().__init__(inner)
        self.keep = keep

    def forward(self, raw: Tensor) -> Tensor:
        m = self.inner(raw)
        # raw is (n, scalars, *out) and M has one axis of taps for the scalars, or two: these
        # become one again, along which the entries of a position compete.
        entries = m.detach().flatten(1, m.dim() - raw.dim() + 1)
        largest = entries.abs().topk(self.keep, 1).indices
        sparse = torch.zeros_like(entries).scatter(1, largest, entries.gather(1, largest))
        return _straight_through(sparse.view(m.shape), m)


class _Select(StructureModule):
    def __init__(self, taps: int):
        super().__init__(taps * taps)
        self.taps = taps

    def forward(self, raw: Tensor) -> Tensor:
        raw = raw.unflatten(1, (self.taps, self.taps))  # (n, kernel tap, patch tap, *out)
        eye = torch.eye(self.taps, dtype=raw.dtype, device=raw.device)
        scores = raw + eye.view(self.taps, self.taps, *[1] * (raw.dim() - 3))
        return _straight_through(_one_hot(scores.detach(), 2), scores)


class _Shift(StructureModule):
    """M with a single one, for every block."""

    def __init__(self, taps: int):
        super().__init__(taps * taps)
        self.taps = taps

    def forward(self, raw: Tensor) -> Tensor:
        """M from its scores `raw`."""
        # All K² scores compete along one axis, number p·K + q for kernel tap p and patch tap q.
        one = _straight_through(_one_hot(raw.detach(), 1), raw)
        return one.unflatten(1, (self.taps, self.taps))

    def initial(self, block: int = 0) -> Tensor:
        """A score of one at the kernel's centre tap and the block's own patch tap."""
        scores = torch.zeros(self.taps, self.taps)
        scores[self.taps // 2, block % self.taps] = 1
        return scores.flatten()


def _one_hot(scores: Tensor, dim: int) -> Tensor:
    """One at the highest score along `dim`, the first of equals, zero elsewhere."""
    highest = scores.argmax(dim, keepdim=True)
    return torch.zeros_like(scores).scatter(dim, highest, 1.0)


def _straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard` with the gradient of `soft`."""
    return hard + (soft - soft.detach())


_MASKABLE = Diagonal, Full, Symmetric, PositiveSemidefinite, Sparse, Select

"""Structures of an M that channels or filters do not share: blocks, or a matrix over channels."""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from neural_similarity.choices import require_count
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.structure import FullModule, Structure, StructureModule, Wrapper
from neural_similarity.ops.blocks import Axis, Blocks, check_blocks


@dataclass(frozen=True, repr=False)
class Unstructured(Structure):
    """M any matrix over channels and taps: (C·K)² scalars for C = c/groups. Static only.

    M = I + raw. The paper's full CHV×CHV matrix, §3.1: with it, W M can be any kernel, provided W
    has at most C·K filters and they are linearly independent.
    """

    dynamic: ClassVar[bool] = False

    def build(self, geometry: Geometry) -> StructureModule:
        channels = geometry.in_channels // geometry.groups
        return FullModule(channels * geometry.taps, residual=True)


@dataclass(frozen=True, repr=False)
class Unshared(Wrapper):
    """An M of `structure` for every group of channels or of filters: G times its scalars.

    The blocks of the paper's block-diagonal matrix, not shared (§3.1). Dynamic blocks of filters
    cost as much mixing as G layers.

    Attributes:
        structure: Structure of every block.
        channels: Number of groups of the input's channels; "each" is a group per channel.
        filters: Number of groups of the kernels, likewise; exactly one of the two is given.

    Raises:
        ValueError: `structure` is not a structure, or is unshared itself; not exactly one number of
            blocks is given; or (when built) it does not divide the channels or kernels.
    """

    channels: int | Literal["each"] | None = None
    filters: int | Literal["each"] | None = None

    def __post_init__(self):
        if (self.channels is None) == (self.filters is None):
            raise ValueError(
                "exactly one of `channels` and `filters` must be given, "
                f"got {self.channels!r} and {self.filters!r}"
            )
        self.require_kinds(Structure)
        if isinstance(self.structure, Unshared | Unstructured):
            raise ValueError(f"`structure` must be that of one block, got {self.structure!r}")
        axis, count = self._axis_and_blocks()
        if count != "each":
            require_count(axis, count)

    def _axis_and_blocks(self) -> tuple[Axis, int | Literal["each"]]:
        """The axis along which M is not shared, and the number of blocks."""
        if self.channels is not None:
            return "channels", self.channels
        return "filters", cast(int, self.filters)

    def build(self, geometry: Geometry) -> StructureModule:
        axis, count = self._axis_and_blocks()
        if count == "each":
            count = geometry.in_channels if axis == "channels" else geometry.out_channels
        blocks = axis, count
        check_blocks(blocks, geometry.in_channels, geometry.out_channels, geometry.groups, axis)
        return _Unshared(blocks, self.structure.build(geometry))


class _Unshared(StructureModule):
    def __init__(self, blocks: Blocks, inner: StructureModule):
        super().__init__(blocks[1] * inner.scalars)
        self.blocks = blocks
        self.count = blocks[1]
        self.inner = inner

    def forward(self, raw: Tensor) -> Tensor:
        each = raw.unflatten(1, (self.count, self.inner.scalars)).flatten(0, 1)
        return self.inner(each).unflatten(0, (raw.shape[0], self.count))

    def initial(self, block: int = 0) -> Tensor:
        return torch.cat([self.inner.initial(i) for i in range(self.count)])

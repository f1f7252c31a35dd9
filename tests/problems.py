"""Awkward operator problems: every axis has its own size, so that swapped axes fail."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Problem:
    name: str
    kernel_size: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    channels: tuple[int, int] = (4, 6)
    size: tuple[int, int] = (7, 9)
    batch: int = 2

    @property
    def taps(self) -> int:
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def geometry(self) -> tuple:
        """stride, padding, dilation, groups: as convolutions take them."""
        return self.stride, self.padding, self.dilation, self.groups

    def operands(self, dtype=torch.float64) -> tuple[Tensor, Tensor]:
        """Input and kernel."""
        c, o = self.channels
        x = torch.randn(self.batch, c, *self.size, dtype=dtype)
        return x, torch.randn(o, c // self.groups, *self.kernel_size, dtype=dtype)

    def similarity(self, kind: str, dtype=torch.float64) -> Tensor:
        """A random M, "diagonal" or "full", at every output position."""
        x, weight = self.operands(dtype)
        output = F.conv2d(x, weight, None, *self.geometry).shape[2:]
        taps = (self.taps,) if kind == "diagonal" else (self.taps, self.taps)
        return torch.randn(self.batch, *taps, *output, dtype=dtype)


PROBLEMS = [
    Problem("plain"),
    Problem("no-padding", padding=(0, 0)),
    Problem("stride", stride=(2, 3)),
    Problem("stride-and-dilation", stride=(3, 1), dilation=(1, 2), size=(8, 11)),
    Problem("dilation", dilation=(2, 1), padding=(3, 0)),
    Problem("rectangular", kernel_size=(1, 3), padding=(0, 1)),
    Problem("even", kernel_size=(2, 4), padding=(1, 2)),
    Problem("wide-padding", kernel_size=(2, 3), padding=(3, 4)),
    Problem("groups", groups=2),
    Problem("depthwise", groups=4, channels=(4, 4)),
    Problem("depthwise-multiplier", groups=4, channels=(4, 8), stride=(2, 1)),
    Problem("single-tap", kernel_size=(1, 1), padding=(0, 0)),
    Problem("empty-batch", batch=0),
    Problem("one-pixel-out", kernel_size=(3, 2), padding=(0, 0), size=(3, 2)),
]
KINDS = ["diagonal", "full"]


def ids(problem) -> str:
    return getattr(problem, "name", str(problem))


def of_kind(kind: str, m: Tensor) -> Tensor:
    """A diagonal M (n, K, *out), full where that is the kind."""
    if kind == "diagonal":
        return m
    return torch.diag_embed(m.movedim(1, -1)).movedim((-2, -1), (1, 2))


GEOMETRIES = [
    {"padding": "same"},
    {"padding": "valid", "stride": 2},
    {"padding": (1, 2), "padding_mode": "reflect", "stride": (2, 1)},
    {"padding": 1, "padding_mode": "replicate", "dilation": (1, 2), "groups": 2},
    {"padding": "same", "padding_mode": "circular", "dilation": 2},
    {"padding": 6, "padding_mode": "reflect"},
    {"padding": 6, "padding_mode": "circular"},
]
"""Options of a layer with padding, of a 3×5 kernel and four channels."""


def pairs(weight, channels, groups, blocks):
    """For each kernel and channel that it sees: the channel of the input, and the block of M."""
    filters, per_group = weight.shape[:2]
    kernel = torch.arange(filters)[:, None].expand(filters, per_group)
    channel = kernel // (filters // groups) * per_group + torch.arange(per_group)
    axis, count = blocks
    number, size = (channel, channels) if axis == "channels" else (kernel, filters)
    return channel, number // (size // count)


def by_hand(x, weight, m, stride, padding, dilation, groups, blocks=None):
    """The definition (n, o, positions), of any dimensions: patches, M of every pair, one einsum."""
    patches, dims = (
        F.pad(x, [side for pad in reversed(padding) for side in (pad, pad)]),
        len(stride),
    )
    for axis, size, step, gap in zip(range(dims), weight.shape[2:], stride, dilation, strict=True):
        patches = patches.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
    patches = patches.flatten(2 + dims).flatten(2, 1 + dims).mT
    m = m.flatten(-dims) if blocks else m.flatten(-dims).unsqueeze(1)
    channel, block = pairs(weight, x.shape[1], groups, blocks or ("channels", 1))
    equation = "ock,nockp,nockp->nop" if m.dim() == 4 else "ock,nockqp,nocqp->nop"
    return torch.einsum(equation, weight.flatten(2), m[:, block], patches[:, channel])

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


def by_blocks(x, weight, m, blocks, problem):
    """(n, o, positions): every pair of a kernel and a channel with the M that its indices name."""
    axis, count = blocks
    stride, padding, dilation, groups = problem.geometry
    n, c = x.shape[:2]
    o, per_group = weight.shape[:2]
    patches = F.unfold(x, weight.shape[2:], dilation, padding, stride).view(n, c, problem.taps, -1)
    if m.dim() == 5:
        m = torch.diag_embed(m.movedim(2, -1)).movedim((-2, -1), (2, 3))
    m = m.flatten(-2)
    y = x.new_zeros(n, o, patches.shape[-1])
    for i in range(o):
        for j in range(per_group):
            channel = i // (o // groups) * per_group + j
            block = channel // (c // count) if axis == "channels" else i // (o // count)
            mixed = torch.einsum("npql,nql->npl", m[:, block], patches[:, channel])
            y[:, i] += torch.einsum("p,npl->nl", weight[i, j].flatten(), mixed)
    return y

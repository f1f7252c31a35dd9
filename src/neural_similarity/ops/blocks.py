"""Blocks: a similarity of its own for every group of channels or of kernels (unshared M)."""

from math import lcm
from typing import Literal, get_args

from torch import Tensor

Axis = Literal["channels", "filters"]
Blocks = tuple[Axis, int]
"""The axis along which M is not shared, and the number of consecutive groups along it."""


def check_blocks(
    blocks: Blocks | None,
    in_channels: int,
    out_channels: int,
    groups: int,
    argument: str = "blocks",
) -> None:
    """Raise a `ValueError` about `argument` unless `blocks` fit a convolution of these sizes."""
    if blocks is None:
        return
    if not isinstance(blocks, tuple) or len(blocks) != 2:
        raise ValueError(f"`blocks` must be a pair of an axis and a number, got {blocks!r}")
    axis, count = blocks
    if axis not in get_args(Axis):
        raise ValueError(f'`blocks` must split "channels" or "filters", got {axis!r}')
    size = in_channels if axis == "channels" else out_channels
    if not isinstance(count, int) or count < 1 or size % count:
        raise ValueError(f"`{argument}` must divide the {size} {axis}, got {count!r}")
    if axis == "filters" and count % groups and groups % count:
        raise ValueError(
            f"`{argument}` must divide `groups` {groups} or be a multiple of it for filters, "
            f"got {count}"
        )


def by_channels(x: Tensor, similarity: Tensor, blocks: Blocks | None, groups: int):
    """Rewrite a convolution with blocks of channels: x (n, c, *size), M (n, b, ...) and groups.

    In the result the number of groups divides that of blocks, or the reverse: blocks that cross the
    edges of groups are cut there, and every piece keeps its block's M. Blocks of filters become
    groups of a grouped convolution, whose input channels are repeated for each of them.
    """
    if blocks is None:
        return x, similarity.unsqueeze(1), groups
    axis, count = blocks
    if axis == "channels" and count % groups and groups % count:
        return x, similarity.repeat_interleave(lcm(count, groups) // count, 1), groups
    if axis == "channels" or groups % count == 0:
        return x, similarity, groups
    x = x.unflatten(1, (groups, -1)).repeat_interleave(count // groups, 1).flatten(1, 2)
    return x, similarity, count

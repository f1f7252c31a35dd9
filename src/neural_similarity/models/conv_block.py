"""A convolution with what follows it: batch normalisation, pool, ReLU."""

from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.models.rivals import Rival
from neural_similarity.nn.normalization import fused, fuses, has_hooks

_MAP_DIMS = 4
"""Those of maps: image, channel, row, column."""
_BEHIND = ([nn.ReLU], [nn.MaxPool2d, nn.ReLU])


class ConvBlock(nn.Sequential):
    """A sequence of a convolution, batch normalisation, a 2×2 pool where a stage ends, and ReLU.

    The ReLU stands behind the pool, where the map is a quarter: the largest number of a window is
    the same before and after it, and so is the gradient. On a CPU what follows the convolution is
    one operator, on channels-last maps and unless a layer was replaced or has hooks.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The block's maps of `input`."""
        conv, *others = self
        x = conv(input)
        if _as_made(others) and fuses(others[0], None, x) and _images(x):
            return fused(others[0], None, x, pool=pools(self))
        for layer in others:
            x = layer(x)
        return x


def conv_block(conv: nn.Conv2d | Rival, *, pool: bool = False) -> ConvBlock:
    """The block of this convolution."""
    middle = [nn.MaxPool2d(2)] if pool else []
    return ConvBlock(conv, nn.BatchNorm2d(conv.out_channels), *middle, nn.ReLU(inplace=True))


def pools(layer: nn.Module) -> bool:
    """Whether it is a block with a pool."""
    return isinstance(layer, ConvBlock) and any(isinstance(part, nn.MaxPool2d) for part in layer)


def without_pool(block: nn.Module) -> ConvBlock:
    """A block of the same layers, but for the pool."""
    return ConvBlock(*(layer for layer in block.children() if not isinstance(layer, nn.MaxPool2d)))


def _as_made(layers: list[nn.Module]) -> bool:
    """Whether these follow the convolution as `conv_block` has it, and none has hooks."""
    behind = [type(layer) for layer in layers[1:]]
    return behind in _BEHIND and not any(map(has_hooks, layers)) and all(map(_halves, layers[1:-1]))


def _halves(pool: Any) -> bool:
    shape = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    return shape == (2, 2, 0, 1) and not pool.ceil_mode and not pool.return_indices


def _images(x: Tensor) -> bool:
    """Whether x is channels-last maps of some size."""
    if x.dim() != _MAP_DIMS:
        return False
    return min(x.shape[2:]) > 1 and x.is_contiguous(memory_format=torch.channels_last)

"""A convolution followed by batch normalisation, pool and ReLU."""

from typing import Any

from torch import nn


class ConvBlock(nn.Sequential):
    """A sequence of a convolution, batch normalisation, a 2×2 pool where a stage ends, and ReLU.

    The ReLU comes after the pool, where the map is a quarter as large: ReLU and maximum commute,
    so output and gradient are the same.
    """


def conv_block(conv: Any, *, pool: bool = False) -> ConvBlock:
    """The block of this convolution, or of another layer with `out_channels`."""
    middle = [nn.MaxPool2d(2)] if pool else []
    return ConvBlock(conv, nn.BatchNorm2d(conv.out_channels), *middle, nn.ReLU(inplace=True))


def has_pool(layer: nn.Module) -> bool:
    """Whether a layer is a block with a pool."""
    return isinstance(layer, ConvBlock) and any(isinstance(part, nn.MaxPool2d) for part in layer)


def without_pool(block: nn.Module) -> ConvBlock:
    """The block with the same layers except its pool."""
    return ConvBlock(*(layer for layer in block.children() if not isinstance(layer, nn.MaxPool2d)))

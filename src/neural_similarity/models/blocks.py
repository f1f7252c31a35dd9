"""A convolution followed by batch normalisation, pool and ReLU."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.models.baselines import BaselineLayer
from neural_similarity.nn.modes import has_hooks
from neural_similarity.ops.batch_norm import pooled_relu
from neural_similarity.ops.native import can_run_here

_MAP_DIMS = 4
"""Dimensions of maps: image, channel, row, column."""


class ConvBlock(nn.Sequential):
    """A sequence of a convolution, batch normalisation, a 2×2 pool where a stage ends, and ReLU.

    The ReLU comes after the pool, where the map is a quarter as large: ReLU and maximum commute,
    so output and gradient are the same. If the normalisation has `affine_line`, which gives slope
    and offset of every channel (2, c) for a batch, then normalisation, pool and ReLU run as one
    operator (`ops.batch_norm`), on channels-last maps on a CPU, unless a layer was replaced or
    has hooks.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The block's maps of `input`."""
        conv, *others = self
        x = conv(input)
        if _as_made(others) and _fits_operator(others[0], x):
            return pooled_relu(x, cast(Any, others[0]).affine_line(x))
        for layer in others:
            x = layer(x)
        return x


def conv_block(conv: nn.Conv2d | BaselineLayer, *, pool: bool = False) -> ConvBlock:
    """The block of this convolution."""
    middle = [nn.MaxPool2d(2)] if pool else []
    return ConvBlock(conv, nn.BatchNorm2d(conv.out_channels), *middle, nn.ReLU(inplace=True))


def has_pool(layer: nn.Module) -> bool:
    """Whether a layer is a block with a pool."""
    return isinstance(layer, ConvBlock) and any(isinstance(part, nn.MaxPool2d) for part in layer)


def without_pool(block: nn.Module) -> ConvBlock:
    """The block with the same layers except its pool."""
    return ConvBlock(*(layer for layer in block.children() if not isinstance(layer, nn.MaxPool2d)))


def _as_made(layers: list[Any]) -> bool:
    """Whether these are a normalisation with `affine_line`, and `conv_block`'s pool and ReLU."""
    if [type(layer) for layer in layers[1:]] != [nn.MaxPool2d, nn.ReLU]:
        return False
    norm, pool, _ = layers
    halves = (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)
    lined = isinstance(norm, _BatchNorm) and hasattr(norm, "affine_line")
    whole = halves and not pool.ceil_mode and not pool.return_indices
    return lined and whole and not any(map(has_hooks, layers))


def _fits_operator(norm: Any, x: Tensor) -> bool:
    """Whether the operator takes x, in channels-last, and `norm`, in float32 for x's channels."""
    if not can_run_here(x) or x.dim() != _MAP_DIMS or min(x.shape[2:]) < 2:
        return False
    running = [t for t in (norm.running_mean, norm.running_var) if t is not None]
    whole = all(
        t is not None and t.dtype == torch.float32 and t.is_cpu
        for t in (norm.weight, norm.bias, *running)
    )
    last = x.is_contiguous(memory_format=torch.channels_last)
    return whole and last and norm.num_features == x.shape[1] < x.numel()

"""The sizes of its layer that a similarity depends on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

from neural_similarity.nn.modes import evaluation_mode
from neural_similarity.ops.window import Window

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution; `padding` is one number per dimension, "same" or "valid"."""

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int = 1
    padding_mode: PaddingMode = "zeros"
    spatial: bool = True
    """Whether there is more than one output position: not in linear and recurrent layers."""

    @property
    def taps(self) -> int:
        """Number of kernel taps, K."""
        return prod(self.kernel_size)

    @property
    def window(self) -> Window:
        """The window over an input from `pad`; symmetric zero padding is part of the window."""
        amounts = self.padding if self.padding_mode == "zeros" else None
        padding = amounts if isinstance(amounts, tuple) else (0,) * len(self.kernel_size)
        return Window(self.kernel_size, self.stride, padding, self.dilation)

    def pad_input(self, x: Tensor) -> Tensor:
        """`x` with the padding that a convolution cannot do itself."""
        zeros = self.padding_mode == "zeros"
        if self.padding == "valid" or (zeros and isinstance(self.padding, tuple)):
            return x
        sides = [amount for pair in reversed(self.both_sides()) for amount in pair]
        return F.pad(x, sides, mode="constant" if zeros else self.padding_mode)

    def output_size(self, input_size: Sequence[int]) -> tuple[int, ...]:
        """Output positions along every dimension."""
        sides = self.both_sides()
        padded = [size + sum(pair) for size, pair in zip(input_size, sides, strict=True)]
        none = (0,) * len(padded)
        return Window(self.kernel_size, self.stride, none, self.dilation).output_size(padded)

    def sample_size(self) -> list[int]:
        """A small input size with several output positions along every dimension."""
        if not self.spatial:
            return list(self.kernel_size)
        windows = zip(self.kernel_size, self.stride, self.dilation, self.both_sides(), strict=True)
        # Reflected padding has to be smaller than the input.
        return [max(d * (k - 1) + 1 + 2 * s, 1 + max(pad)) for k, s, d, pad in windows]

    def both_sides(self) -> list[tuple[int, int]]:
        """Padding before and after, for every dimension."""
        if isinstance(self.padding, tuple):
            return [(amount, amount) for amount in self.padding]
        if self.padding == "valid":
            return [(0, 0)] * len(self.kernel_size)
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [(t // 2, t - t // 2) for t in total]


def convolution_geometry(layer: _ConvNd) -> Geometry:
    """The geometry of one of torch's convolutions or of a subclass, as its `forward` uses it.

    Sizes are read from the weight, which a network may have replaced (as for grey images). A single
    number for stride, padding or dilation applies to every dimension.
    """
    outer, inner, *taps = _kernel_shape(layer)
    channels = inner * layer.groups, outer
    if layer.transposed:
        channels = outer, inner * layer.groups
    padding, dims = layer.padding, len(layer.output_padding)
    if len(taps) != dims:
        raise ValueError(f"`kernel_size` must be {dims} numbers, got {tuple(taps)}")
    return Geometry(
        *channels,
        kernel_size=tuple(taps),
        stride=repeat_per_dim(layer.stride, dims),
        padding=padding if isinstance(padding, str) else repeat_per_dim(padding, dims),
        dilation=repeat_per_dim(layer.dilation, dims),
        groups=layer.groups,
        padding_mode=cast(PaddingMode, layer.padding_mode),
    )


def _kernel_shape(layer: _ConvNd) -> Sequence[int]:
    """In evaluation mode: a spectral norm in training mode moves when it is read."""
    if not is_parametrized(layer, "weight"):
        return layer.weight.shape
    with evaluation_mode(cast(nn.ModuleDict, layer.parametrizations)):
        return layer.weight.shape


def repeat_per_dim(amount: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number for every dimension."""
    amounts = (amount,) if isinstance(amount, int) else tuple(amount)
    return amounts * dims if len(amounts) == 1 else amounts

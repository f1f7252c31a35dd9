"""What a similarity knows of its layer."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.window import same_padding

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

    @property
    def taps(self) -> int:
        """Number of kernel taps, K."""
        return prod(self.kernel_size)

    def pad(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """`x` padded as far as a convolution cannot do it, and the zero padding left to it."""
        none = (0,) * len(self.kernel_size)
        if self.padding == "valid":
            return x, none
        if self.padding_mode == "zeros":
            if isinstance(self.padding, tuple):
                return x, self.padding
            return same_padding(x, self.kernel_size, self.dilation), none
        return F.pad(x, self._both_sides(), mode=self.padding_mode), none

    def _both_sides(self) -> list[int]:
        """Amounts of padding in `torch.nn.functional.pad`'s order: last dimension first."""
        sides: list[int] = []
        for i in reversed(range(len(self.kernel_size))):
            if isinstance(self.padding, tuple):
                sides += [self.padding[i]] * 2
            else:
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                sides += [total // 2, total - total // 2]
        return sides

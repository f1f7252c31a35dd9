"""The operands of both dynamic operators and of a layer; the interface of implementations."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from neural_similarity.ops.window import Window

Gradients = tuple[Tensor, Tensor, Tensor]
"""The gradients of x, weight and M."""


class Operands(NamedTuple):
    """x (n, c, *size), weight (o, c/groups, *kernel), M (n, b, *taps, *out) and their geometry.

    The taps of M are K (diagonal) or K, K (full); each of b blocks of channels has an M.
    """

    x: Tensor
    weight: Tensor
    m: Tensor
    window: Window
    groups: int

    @property
    def output_size(self) -> tuple[int, ...]:
        """Number of positions along every dimension of y, for each of which M is given."""
        return tuple(self.m.shape[2 - self.x.dim() :])

    def empty_output(self, output: tuple[int, ...] = ()) -> Tensor:
        """Uninitialised y (n, o, *out), in the memory format of torch's convolution."""
        x, shape = self.x, (self.x.shape[0], self.weight.shape[0], *(output or self.output_size))
        layout = self.memory_format()
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)

    def in_format(self, y: Tensor) -> Tensor:
        """y (n, o, *out) in the memory format of torch's convolution."""
        return y.contiguous(memory_format=self.memory_format())

    def empty_gradients(self, needs: Sequence[bool]) -> Gradients:
        """Uninitialised gradients; an empty tensor for each that `needs` leaves out."""
        x, weight, m = [
            torch.empty_like(tensor) if need else tensor.new_empty(0)
            for tensor, need in zip(self[:3], needs, strict=True)
        ]
        return x, weight, m

    def memory_format(self) -> torch.memory_format:
        """That of torch's convolution: channels-last where the input or the kernel is."""
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = formats.get(self.x.dim(), torch.contiguous_format)
        either = _is_channels_last(self.x, last) or _is_channels_last(self.weight, last)
        return last if either else torch.contiguous_format


class LayerFrame(NamedTuple):
    """What a layer's operator depends on beside its tensors."""

    window: Window
    last: Window
    """That of the second convolution."""
    groups: int
    eps: float
    factor: float
    """s: 1, or √N for patches over their root mean square."""
    full: bool
    predictor: str
    """"sphere"; "light", whose second convolution has s; or "pooled", of averages."""


class LayerTensors(NamedTuple):
    """The tensors of a layer: x, W, b, W₁, b₁, W₂, b₂ and g; or their gradients, in this order."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    first: Tensor
    first_bias: Tensor | None
    last: Tensor
    last_bias: Tensor | None
    gain: Tensor


@runtime_checkable
class Implementation(Protocol):
    """One way to compute an operator."""

    def forward(self, given: Operands) -> Tensor:
        """y (n, o, *out), in the memory format of `Operands.empty_output`."""
        ...

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        """Gradients, given that of y; an empty tensor for each that `needs` leaves out."""
        ...


class Entry(NamedTuple):
    """A backend: all that the library asks of it."""

    name: str
    declines: Callable[[Tensor, int], str | None]
    """Why it cannot take an input and a number of taps, or None."""
    way: Callable[[bool], Implementation]
    """Its implementation for a diagonal (False) or a full M (True)."""
    suits: Callable[[Operands], bool] = lambda _given: True
    """Whether "auto" asks it for these operands: False where another backend is faster."""


def channels_last(maps: Tensor) -> Tensor:
    """Maps (n, c, *size) with adjacent channels, which a GPU's kernels load fast."""
    if maps.stride(1) == 1:
        return maps
    return maps.movedim(1, -1).contiguous().movedim(-1, 1)


def _is_channels_last(t: Tensor, last: torch.memory_format) -> bool:
    """Whether t is channels-last; with one channel or position, the strides decide.

    A batch of `vmap` is not: torch does not say.
    """
    if is_batchedtensor(t):
        return False
    if t.is_contiguous() and t.is_contiguous(memory_format=last):
        return t.stride(1) == 1 and t.stride(-1) == t.shape[1] and prod(t.shape[1:]) > 1
    return t.is_contiguous(memory_format=last)

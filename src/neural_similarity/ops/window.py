"""Geometry of a sliding window; types under autocast; vectors of length 1."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
"""torch's convolution by its number of spatial dimensions."""


class Window(NamedTuple):
    """A sliding window in any number of spatial dimensions, symmetric zero padding included."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Number of kernel taps, K."""
        return prod(self.kernel_size)

    def output_size(self, input_size: Sequence[int]) -> tuple[int, ...]:
        """Number of positions along every dimension, as a convolution counts them."""
        sizes = zip(input_size, *self, strict=True)
        return tuple([(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes])


def make_window(
    kernel_size: Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> Window:
    """A validated `Window`; single numbers are repeated.

    Raises:
        ValueError: an argument has the wrong length or a value below its minimum.
    """
    dims = len(kernel_size)
    return Window(
        tuple(kernel_size),
        repeat_sizes("stride", stride, dims, least=1),
        repeat_sizes("padding", padding, dims, least=0),
        repeat_sizes("dilation", dilation, dims, least=1),
    )


def repeat_sizes(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    """`value` as a tuple of `dims` integers."""
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= dims
    if len(values) != dims or any(not isinstance(v, int) or v < least for v in values):
        raise ValueError(f"`{name}` must be {dims} integers of at least {least}, got {value!r}")
    return values


def promote_dtype(raw: Tensor) -> Tensor:
    """`raw` in float32, or float64 if it is float64: similarities near 1 need the precision."""
    return raw if raw.dtype == torch.float64 else raw.float()


def autocast_enabled(tensor: Tensor) -> bool:
    """Whether autocast is on for `tensor`'s device; some devices, such as meta, have none."""
    try:
        return torch.is_autocast_enabled(tensor.device.type)
    except RuntimeError:  # Compilers before torch 2.12 cannot trace `is_autocast_available`.
        return False


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a convolution takes `tensor`: autocast leaves float64 as it is."""
    if tensor.dtype == torch.float64 or not autocast_enabled(tensor):
        return tensor.dtype
    return torch.get_autocast_dtype(tensor.device.type)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on `tensor`'s device keep their input's precision."""
    if not autocast_enabled(tensor):
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def require_tensors(**given: object) -> None:
    """Raise a `ValueError` that names an argument which is not a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"`{name}` must be a tensor, got {type(value).__name__}")


def unit_vectors(vectors: Tensor, dim: int) -> Tensor:
    """Vectors along `dim` over their lengths; float16 is computed and returned in float32.

    A vector of length zero stays zero, with a gradient of zero. `F.normalize` divides by its eps
    there: by 0 in float16, and gradients by 1e-12 elsewhere.
    """
    vectors = without_half(vectors)
    lengths = vectors.norm(dim=dim, keepdim=True)
    return vectors / lengths.masked_fill(lengths < 1e-12, torch.inf)


def without_half(vectors: Tensor) -> Tensor:
    """Vectors in a type that holds their squares and one over their lengths: no float16."""
    return vectors.float() if vectors.dtype == torch.float16 else vectors

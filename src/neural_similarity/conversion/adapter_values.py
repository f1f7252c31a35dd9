"""Checks of the values that an adapter may hold."""

import torch
from torch import Tensor


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise a `ValueError` where a number is NaN or infinite."""
    numbers = tensor.detach()
    if numbers.dtype.itemsize == 1 and numbers.is_floating_point():
        numbers = numbers.float()  # torch.isfinite has no 8-bit types.
    if not numbers.isfinite().all():
        raise ValueError(f"{name} must hold finite numbers, got NaN or infinite ones")


def exact_cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating-point tensor in another floating-point type that holds its values exactly.

    Raises:
        ValueError: one of the types is not floating-point, or digits would be lost.
    """
    if tensor.dtype == dtype:
        return tensor
    if tensor.is_floating_point() and dtype.is_floating_point:
        cast = tensor.to(dtype)
        if torch.equal(cast.double(), tensor.double()):
            return cast
    raise ValueError(
        f"{name} must be {dtype} as its place in the network, or exact in it, got {tensor.dtype}"
    )

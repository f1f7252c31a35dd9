"""Which implementation of the dynamic operators runs, and why one declines."""

from typing import Literal, get_args

from torch import Tensor

Backend = Literal["auto", "eager", "reference"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def declines(backend: str, x: Tensor) -> str | None:
    """Why `backend` cannot take `x`, or None if it can.

    "eager" is plain PyTorch in blocks, with registered operators; "reference" is the defining
    einsum, which is what gets exported; "auto" takes the fastest that does not decline.

    Raises:
        ValueError: there is no backend of that name.
    """
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not x.is_floating_point():
        return f"the input is {x.dtype}, not a floating-point type"
    return None

"""Which implementation of the dynamic operators runs, and why one declines."""

from typing import Literal, get_args

from torch import Tensor

from neural_similarity.choices import require_known
from neural_similarity.ops import halo, native, triton

Backend = Literal["auto", "halo", "triton", "compiled", "eager", "reference"]
BACKENDS: tuple[str, ...] = get_args(Backend)
_REASONS = {
    "halo": halo.declines_halo,
    "triton": triton.declines_triton,
    "compiled": native.declines_native,
}
NARROW = 4
"""On a CPU, groups of fewer channels that C takes one by one are faster in the eager form."""


def declines(backend: str, x: Tensor, taps: int) -> str | None:
    """Why `backend` cannot take the input `x` and a kernel of `taps` taps, or None if it can.

    "triton" is kernels for GPUs; "halo" is kernels for Hopper GPUs that no GPU has run yet, see
    `use_halo`; "compiled" is C for the CPU, compiled for this machine at its first use; "eager" is
    plain PyTorch in tiles; "reference" is the definition, which is exported; "auto" takes the
    fastest that does not decline.

    Raises:
        ValueError: there is no backend of that name.
    """
    require_known("backend", backend, BACKENDS)
    if not x.is_floating_point():
        return f"the input is {x.dtype}, not a floating-point type"
    return _REASONS[backend](x, taps) if backend in _REASONS else None


def choose_backend(
    backend: str, x: Tensor, taps: int, groups: int, *, together: bool = False
) -> str:
    """The backend that "auto" stands for, or the given one; `together`: `native.takes_together`."""
    if backend != "auto":
        return backend
    if x.is_cuda:
        return "eager" if triton.declines_triton(x, taps) else "triton"
    narrow = groups > 1 and x.shape[1] // groups < NARROW and not together
    return "eager" if narrow or native.declines_native(x, taps) else "compiled"

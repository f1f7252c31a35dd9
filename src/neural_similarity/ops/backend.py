"""Which backend of the dynamic operators runs, and why one declines."""

from typing import Literal, get_args

from torch import Tensor

from neural_similarity.choices import require_known
from neural_similarity.ops import eager, native, triton
from neural_similarity.ops.operands import Implementation, Operands

Backend = Literal["auto", "triton", "compiled", "eager", "reference"]
BACKENDS: tuple[str, ...] = get_args(Backend)
ENTRIES = {entry.name: entry for entry in (triton.ENTRY, native.ENTRY, eager.ENTRY)}
"""The backends that compute the registered operators, fastest first; the last never declines."""
_IMPLEMENTATIONS = {
    (entry.name, full): entry.way(full) for entry in ENTRIES.values() for full in (False, True)
}


def declines(backend: str, x: Tensor, taps: int) -> str | None:
    """Why `backend` cannot take the input `x` and a kernel of `taps` taps, or None if it can.

    "triton" is kernels for GPUs; "compiled" is C for the CPU, compiled for this machine at its
    first use; "eager" is plain PyTorch in tiles; "reference" is the definition, which is exported;
    "auto" takes the fastest that does not decline.

    Raises:
        ValueError: there is no backend of that name.
    """
    require_known("backend", backend, BACKENDS)
    if not x.is_floating_point():
        return f"the input is {x.dtype}, not a floating-point type"
    return ENTRIES[backend].declines(x, taps) if backend in ENTRIES else None


def choose_implementation(backend: str, given: Operands, *, full: bool) -> Implementation:
    """The implementation of a backend's operator with a diagonal or a full M."""
    return _IMPLEMENTATIONS[choose_backend(backend, given), full]


def choose_backend(backend: str, given: Operands) -> str:
    """The backend that "auto" stands for, or the given one."""
    if backend != "auto":
        return backend
    taps = given.window.taps
    entries = (e for e in ENTRIES.values() if e.suits(given) and e.declines(given.x, taps) is None)
    return next(entries).name

"""Launching compiled kernels by CUDA's driver, which is on every machine with an NVIDIA GPU."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from neural_similarity.ops.halo.compiling import kernel_code

Argument = Tensor | int | float | None
_DYNAMIC_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


def launch_kernel(
    name: str,
    definitions: tuple[str, ...],
    grid: tuple[int, int],
    threads: int,
    shared_bytes: int,
    arguments: Sequence[Argument],
) -> None:
    """Run a kernel of `definitions` on the current stream of its first tensor's device.

    Raises:
        RuntimeError: the compiler or the driver fails.
    """
    device = next(one.device for one in arguments if isinstance(one, Tensor))
    _call_driver("cuCtxSetCurrent", _load_context(device.index))  # a new thread has none
    function = _load_function(name, definitions, shared_bytes, device.index)
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    _call_driver(
        "cuLaunchKernel", function, *grid, 1, threads, 1, 1, shared_bytes, stream,
        argument_pointers(arguments), None,
    )  # fmt: skip


def argument_pointers(arguments: Sequence[Argument]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of a kernel's arguments: those of tensors, or null, and numbers of 32 bits."""
    values = [_plain_value(one) for one in arguments]
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    pointers._values = values  # type: ignore[attr-defined]  # they live as long
    return pointers


def _plain_value(argument: Argument) -> ctypes._SimpleCData:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr() if argument is not None else None)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


@cache
def _load_context(device: int) -> ctypes.c_void_p:
    """The device's primary context, which torch uses."""
    context = ctypes.c_void_p()
    _call_driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


@cache
def _load_function(
    name: str, definitions: tuple[str, ...], shared_bytes: int, device: int
) -> ctypes.c_void_p:
    """A kernel in the current context, that of `device`."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call_driver("cuModuleLoadData", ctypes.byref(module), kernel_code(name, definitions))
    _call_driver("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    _call_driver("cuFuncSetAttribute", function, _DYNAMIC_SHARED_BYTES, shared_bytes)
    return function


@cache
def _load_driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call_driver(name: str, *arguments: object) -> None:
    if code := getattr(_load_driver(), name)(*arguments):
        raise RuntimeError(f"CUDA's driver fails in {name} with code {code}")

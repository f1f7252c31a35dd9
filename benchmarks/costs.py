"""What a subject costs besides time: what autograd keeps, peak memory, multiplications."""

import ctypes
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

PROCESS = Path("/proc/self")
Shape = Sequence[int]


def saved_bytes(module: nn.Module, inputs: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass, parameters left out, inputs not.

    Whole storages are counted, each once: a small view keeps all that it looks at.
    """
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        y = module(*inputs)  # Held until all is counted, so that no address is used twice.
    total = sum(kept.values())
    del y
    return total


def macs(module: nn.Module, inputs: Iterable[Tensor]) -> int:
    """Multiplications of the forward pass: convolutions, matrix and element-wise products."""
    import_module("neural_similarity.ops.flops")
    from torch.utils.flop_counter import FlopCounterMode

    # Not without autograd: torch's counter does not take views of parameters there.
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """Memory that a call needs at most, beyond what is held before it; None where unknown.

    On the CPU the growth of the process's memory, by Linux: all that is touched, libraries' own
    buffers included. On a GPU torch's allocations.
    """
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if not _give_back_memory():
        return None
    before = _resident("VmRSS")
    call()
    return max(0, _resident("VmHWM") - before)


def _formulas() -> dict[Any, Callable[..., int]]:
    """Twice the multiplications of what torch's counter leaves out."""

    def product(*_: Any, out_shape: Shape) -> int:
        return 2 * prod(out_shape)

    def deformable(x: Shape, weight: Shape, *_: Any, out_shape: Shape) -> int:
        taps, positions = prod(weight[2:]), out_shape[0] * prod(out_shape[2:])
        return 2 * (prod(weight) * positions + x[1] * taps * positions)

    formulas: dict[Any, Callable[..., int]] = {torch.ops.aten.mul: product}
    if hasattr(torch.ops.torchvision, "deform_conv2d"):
        formulas[torch.ops.torchvision.deform_conv2d] = deformable
    return formulas


def _give_back_memory() -> bool:
    """Return freed memory to the system and forget earlier peaks; False where that is not known."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    try:
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident(name: str) -> int:
    """Bytes of the process in memory, now ("VmRSS") or at most ("VmHWM")."""
    text = (PROCESS / "status").read_text(encoding="ascii")
    return 1024 * int(re.findall(rf"{name}:\s+(\d+) kB", text)[0])

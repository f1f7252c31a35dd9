"""The dynamic operators on a GPU: one kernel each instead of tiles of columns.

M is applied to patches in registers, on their way into an implicit matrix product, so that no
tensor of K times the input's size is written. No kernel adds to memory that another program writes:
results do not depend on the order of programs. Importing this does not import triton.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from neural_similarity.ops.operands import Entry, Gradients, Operands

MOST_TAPS = 64
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OLDEST = (8, 0)
_FAULTS: dict[torch.device, str | None] = {}
"""What `_fault` found, by GPU."""


def declines_triton(x: Tensor, taps: int) -> str | None:
    """Why the kernels cannot take `x` and a window of `taps` taps, or None."""
    if not (x.is_cuda or is_interpreted()):
        return f"the input is on {x.device.type}, not on a GPU"
    if x.dtype not in _DTYPES:
        return f"the input is {x.dtype}, not float32, float16 or bfloat16"
    if x.dim() > 4:
        return f"the input has {x.dim() - 2} spatial dimensions, more than 2"
    if taps > MOST_TAPS:
        return f"the kernel has {taps} taps, more than {MOST_TAPS}"
    if find_spec("triton") is None:
        return "triton is not installed"
    return _gpu_fault(x.device) if x.is_cuda else None


def _gpu_fault(device: torch.device) -> str | None:
    """Why no kernel runs on a GPU, or None; found out by launching an empty kernel once.

    Triton may be installed without a C compiler, or be broken. While a graph is captured, which
    must not be disturbed, or a program traced, an untried GPU is assumed to work.
    """
    if device not in _FAULTS:
        if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
            return None
        _FAULTS[device] = _try_launch(device)
    return _FAULTS[device]


def _try_launch(device: torch.device) -> str | None:
    if torch.cuda.get_device_capability(device) < _OLDEST:
        return f"the GPU's compute capability is below {'.'.join(map(str, _OLDEST))}"
    try:
        from neural_similarity.ops.triton import trial

        trial.launch_empty(device)
    except Exception as error:  # The import, driver, compiler and assembler raise any.
        words = type(error).__name__, str(error).strip().partition("\n")[0]
        return f"triton does not run here: {': '.join(filter(None, words))}"
    return None


def is_interpreted() -> bool:
    """Whether triton is loaded and its interpreter runs kernels, on the CPU as well."""
    triton = sys.modules.get("triton")
    return triton is not None and triton.knobs.runtime.interpret


class Triton:
    """`operands.Implementation` by Triton's kernels; a diagonal and a full M differ in shape."""

    def forward(self, given: Operands) -> Tensor:
        from neural_similarity.ops.triton import launch

        return launch.forward(given)

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        from neural_similarity.ops.triton import launch

        return launch.backward(grad, given, needs)


ENTRY = Entry("triton", declines_triton, lambda _full: Triton(), lambda given: given.x.is_cuda)

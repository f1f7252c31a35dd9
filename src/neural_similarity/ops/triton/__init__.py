"""The dynamic operators on a GPU: one kernel each instead of tiles of columns.

M meets the patches in registers, on their way into an implicit matrix product, so nothing of K
times the input's size is written. No kernel adds to memory that another program writes: results do
not depend on the order of programs. Importing this imports no triton.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from neural_similarity.ops.operands import Gradients, Operands

MOST_TAPS = 64
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OLDEST = (8, 0)


def declines(x: Tensor, taps: int) -> str | None:
    """Why the kernels cannot take `x` and a window of so many taps, or None."""
    if not (x.is_cuda or interpreted()):
        return f"the input is on {x.device.type}, not on a GPU"
    if x.dtype not in _DTYPES:
        return f"the input is {x.dtype}, none of float32, float16 and bfloat16"
    if x.dim() > 4:
        return f"the input has {x.dim() - 2} spatial dimensions, more than 2"
    if taps > MOST_TAPS:
        return f"the kernel has {taps} taps, more than {MOST_TAPS}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < _OLDEST:
        return f"the GPU's compute capability is below {'.'.join(map(str, _OLDEST))}"
    return None


def interpreted() -> bool:
    """Whether triton is loaded and its interpreter runs kernels, on the CPU as well."""
    triton = sys.modules.get("triton")
    return triton is not None and triton.knobs.runtime.interpret


class Triton:
    """`operands.Implementation` by Triton's kernels; a diagonal and a full M differ in shape."""

    def forward(self, given: Operands) -> Tensor:
        """`Implementation.forward`."""
        from neural_similarity.ops.triton import launch

        return launch.forward(given)

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        """`Implementation.backward`."""
        from neural_similarity.ops.triton import launch

        return launch.backward(grad, given, needs)

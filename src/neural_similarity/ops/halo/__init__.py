"""Both operators on a Hopper GPU by kernels that load every tile of a map once, with a halo.

For 3×3 kernels with stride 1 and padding 1, channels-last maps of `SIZES` channels in float16 or
bfloat16. They are CUDA C++ (`*.cu`), compiled by NVRTC at their first use. No GPU has run them yet:
they are off until `use_halo`, and where they are on, each is tried against the definition first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from neural_similarity.ops.operands import Gradients, Operands
from neural_similarity.ops.window import Window

SIZES = (32, 64, 128, 256)
"""Numbers of input and output channels."""
HIDDEN_SIZES = (32, 64)
"""Numbers of hidden channels of a layer with its predictor in two kernels."""
WINDOW = Window((3, 3), (1, 1), (1, 1), (1, 1))
INDEX_LIMIT = 2**31
"""Of a tensor, so that an index is 32 bits."""
M_PARTS = 4
"""The most parts of M's gradient, one for each 64 channels."""
_DTYPES = (torch.float16, torch.bfloat16)
_CAPABILITY = (9, 0)
_SWITCH = {"on": False}
_OFF = "not measured on a GPU yet; `neural_similarity.ops.use_halo()` switches it on"


def use_halo(on: bool = True) -> None:
    """Let "auto" take the halo kernels, in this process; without this call it never does.

    They are not measured on a GPU yet.
    """
    _SWITCH["on"] = on


def declines_halo(x: Tensor, taps: int, dtype: torch.dtype | None = None) -> str | None:
    """Why the halo kernels cannot take `x`, cast to `dtype`, and a window of `taps`, or None."""
    dtype = dtype or x.dtype
    if not _SWITCH["on"]:
        return _OFF
    if not x.is_cuda:
        return f"the input is on {x.device.type}, not on a GPU"
    if dtype not in _DTYPES:
        return f"the input is {dtype}, neither float16 nor bfloat16"
    if x.dim() != 4 or taps != WINDOW.taps:
        return f"the input has {x.dim() - 2} spatial dimensions and {taps} taps, not 2 and 9"
    if x.shape[1] not in SIZES:
        return f"the input has {x.shape[1]} channels, none of {SIZES}"
    if not x.is_contiguous(memory_format=torch.channels_last):
        return "the input is not channels-last"
    if torch.cuda.get_device_capability(x.device) != _CAPABILITY:
        return "the GPU's compute capability is not 9.0"
    return None


def declines_operands(given: Operands) -> str | None:
    """As `declines_halo`, of all operands; tries the kernels of these channels once."""
    if not _SWITCH["on"]:  # of every layer's step on a CPU
        return _OFF
    x, weight, m, window, groups = given
    if reason := declines_halo(x, window.taps):
        return reason
    if window != WINDOW:
        return f"the window is {window}, not 3×3 with stride 1 and padding 1"
    if groups != 1 or m.shape[1] != 1:
        return "the channels are in groups or blocks"
    if len(weight) not in SIZES:
        return f"there are {len(weight)} outputs, none of {SIZES}"
    if max(x.numel(), M_PARTS * m.numel(), x.numel() // x.shape[1] * len(weight)) >= INDEX_LIMIT:
        return f"a tensor has {INDEX_LIMIT} numbers or more"
    from neural_similarity.ops.halo import trial

    return trial.kernel_fault(given)


def declines_predictor(given: Operands, first: Tensor, last: Tensor, full: bool) -> str | None:
    """Why the kernels of a layer with its predictor cannot take it, or None; M is not given yet.

    `first` and `last` are the kernels of the predictor's convolutions; x has the type of both.
    """
    x, weight, _, window, groups = given
    if window != WINDOW or last.shape[2:] != WINDOW.kernel_size or groups != 1:
        return "a window is not 3×3 with stride 1 and padding 1, or channels are in groups"
    if full:
        return "M is full, not diagonal"
    if len(first) not in HIDDEN_SIZES:
        return f"there are {len(first)} hidden channels, none of {HIDDEN_SIZES}"
    if not {x.shape[1], len(weight)} <= set(SIZES):
        return f"{x.shape[1]} channels or {len(weight)} outputs are none of {SIZES}"
    if x.numel() // x.shape[1] * max(SIZES) >= INDEX_LIMIT:
        return f"a tensor could have {INDEX_LIMIT} numbers or more"
    from neural_similarity.ops.halo import trial

    return trial.predictor_fault(x, len(weight), len(first))


class Halo:
    """`operands.Implementation` by the halo kernels, unless `declines_operands`."""

    def forward(self, given: Operands) -> Tensor:
        from neural_similarity.ops.halo import launch

        return launch.make_task(given).forward()

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        from neural_similarity.ops.halo import launch

        return launch.make_task(given).backward(grad, needs)

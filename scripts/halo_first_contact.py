"""The halo kernels on a GPU that has not run them yet: whether they are right, and their times.

    python scripts/halo_first_contact.py

Lines of JSON, for each shape first what the trial found, then microseconds of each pass: graphs of
calls that alternate between three sets of operands, beside Triton's kernels and torch's convolution
(cuDNN, tuned). Wrong kernels are not timed.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import Clock
from benchmarks.replays import CALLS, clock_of
from neural_similarity.ops import use_halo
from neural_similarity.ops.halo import WINDOW, Halo, declines_operands
from neural_similarity.ops.operands import Gradients, Operands
from neural_similarity.ops.triton import Triton

SHAPES = [(64, 64, 32), (64, 64, 16), (32, 32, 32), (128, 128, 16), (256, 256, 8), (64, 64, 14)]
"""Channels, outputs, size; the first is that of the table in docs/gpu.md."""
SETS, REPLAYS = 3, 5
GRADIENTS = {
    "gradients of x and M": (True, False, True),
    "gradient of W": (False, True, False),
    "all gradients": (True, True, True),
}


class Convolution:
    """torch's convolution as an `operands.Implementation`, which leaves M out."""

    def forward(self, given: Operands) -> Tensor:
        return F.conv2d(given.x, given.weight, padding=1)

    def backward(self, grad: Tensor, given: Operands, needs: tuple[bool, ...]) -> Gradients:
        x, weight, window = given.x, given.weight, given.window
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, window.stride, window.padding, window.dilation, False, [0, 0],
            1, [needs[0], needs[1], False],
        )  # fmt: skip


WAYS = {"nn.Conv2d": Convolution(), "triton": Triton(), "halo": Halo()}


def operand_sets(
    shape: tuple[int, int, int], batch: int, device: torch.device
) -> list[tuple[Tensor, Operands]]:
    """Gradients of y, and operands, in bfloat16 and channels-last."""
    channels, outputs, size = shape

    def maps(*sides: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        values = torch.randn(*sides, device=device, dtype=dtype)
        return values.contiguous(memory_format=torch.channels_last)

    def operands() -> Operands:
        m = maps(batch, 9, size, size, dtype=torch.float32).unsqueeze(1)
        weight = maps(outputs, channels, 3, 3) / channels**0.5
        return Operands(maps(batch, channels, size, size), weight, m, WINDOW, 1)

    return [(maps(batch, outputs, size, size), operands()) for _ in range(SETS)]


def pass_calls(way: Any, sets: list[tuple[Tensor, Operands]]) -> Iterator[tuple[str, Callable]]:
    """The passes of an implementation, each on the next set of operands."""
    turns = cycle(sets)
    yield "forward", lambda: way.forward(next(turns)[1])
    for name, needs in GRADIENTS.items():
        yield name, lambda needs=needs: way.backward(*next(turns), needs)


def measured_rows(
    shape: tuple[int, int, int], batch: int, device: torch.device, clock: Clock
) -> Iterator[dict[str, Any]]:
    """What the trial found at a shape, then the times of all ways."""
    sets, began = operand_sets(shape, batch, device), time.monotonic()
    fault = declines_operands(sets[0][1])
    yield {"shape": shape, "fault": fault, "seconds": round(time.monotonic() - began, 1)}
    for name, way in WAYS.items():
        if name != "halo" or fault is None:
            calls = pass_calls(way, sets)
            times = {part: round(clock(call, CALLS * REPLAYS) * 1e6, 1) for part, call in calls}
            yield {"shape": shape, "way": name, "µs": times}


def main() -> int:
    """Write the lines."""
    if not torch.cuda.is_available():
        sys.stderr.write("torch finds no GPU here\n")
        return 1
    use_halo()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.backends.cudnn.benchmark = True
    for shape in SHAPES:
        for row in measured_rows(shape, 128, device, clock_of(device)):
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

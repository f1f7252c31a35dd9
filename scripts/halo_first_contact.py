"""The halo kernels on a GPU that has not run them yet: whether they are right, and their times.

    python scripts/halo_first_contact.py

Lines of JSON, for each shape first what the trial found, then microseconds of each pass: graphs of
calls that alternate between three sets of operands, beside Triton's kernels and torch's convolution
(cuDNN, tuned), then those of a layer with its predictor, whole and kernel by kernel. Wrong kernels
are not timed.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import neural_similarity as ns
from benchmarks.measure import Clock
from benchmarks.replays import CALLS, clock_of
from neural_similarity.ops import use_halo
from neural_similarity.ops.halo import WINDOW, Halo, declines_operands, launch
from neural_similarity.ops.operands import Gradients, Operands
from neural_similarity.ops.triton import Triton

Shape = tuple[int, int, int, bool]
"""Channels, outputs, size, and whether M is full."""
SHAPES: list[Shape] = [
    (64, 64, 32, False), (64, 64, 32, True), (64, 64, 16, False), (32, 32, 32, False),
    (128, 128, 16, False), (128, 128, 16, True), (256, 256, 8, False), (64, 64, 14, False),
]  # fmt: skip
"""The first two are those of the table in docs/gpu.md."""
LAYERS = [SHAPES[0], SHAPES[2], SHAPES[3], SHAPES[4]]
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


def operand_sets(shape: Shape, batch: int, device: torch.device) -> list[tuple[Tensor, Operands]]:
    """Gradients of y, and operands, in bfloat16 and channels-last."""
    channels, outputs, size, full = shape
    taps = (9, 9) if full else (9,)

    def maps(*sides: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        values = torch.randn(*sides, device=device, dtype=dtype)
        return values.contiguous(memory_format=torch.channels_last)

    def operands() -> Operands:
        m = maps(batch, prod(taps), size, size, dtype=torch.float32).unflatten(1, (1, *taps))
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
    shape: Shape, batch: int, device: torch.device, clock: Clock
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


def layer_rows(device: torch.device, clock: Clock) -> Iterator[dict[str, Any]]:
    """The times of layers, by their parts in Triton, also in NCHW, and by the halo kernels."""
    for shape in LAYERS:
        yield from _rows_of_layer(shape, device, clock)


def _rows_of_layer(shape: Shape, device: torch.device, clock: Clock) -> Iterator[dict[str, Any]]:
    channels, outputs, size, _ = shape
    layer = ns.Conv2d(channels, outputs, 3, padding=1, similarity="dynamic-diagonal")
    plain = nn.Conv2d(channels, outputs, 3, padding=1)
    x = torch.randn(128, channels, size, size, device=device, dtype=torch.bfloat16)
    last, first = torch.channels_last, torch.contiguous_format
    for name, module, layout, on in (
        ("nn.Conv2d", plain, last, False),
        ("triton, NCHW", layer, first, False),
        ("triton", layer, last, False),
        ("halo", layer, last, True),
    ):
        use_halo(on)
        module.to(device, torch.bfloat16, memory_format=layout)
        maps = x.to(memory_format=layout).requires_grad_()
        calls = {
            "forward": partial(module, maps),
            "with backward": partial(_differentiate, module, maps),
        }
        times = {part: round(clock(call, CALLS * REPLAYS) * 1e6, 1) for part, call in calls.items()}
        yield {"layer": (channels, outputs, size), "way": name, "µs": times}


def kernel_rows(device: torch.device, clock: Clock) -> Iterator[dict[str, Any]]:
    """The times of each kernel of the layer of the first shape, alone."""
    channels, outputs, size, _ = SHAPES[0]
    layer = ns.Conv2d(channels, outputs, 3, padding=1, bias=False, similarity="dynamic-diagonal")
    layer.to(device, torch.bfloat16, memory_format=torch.channels_last)
    inputs = torch.randn(SETS, 128, channels, size, size, device=device, dtype=torch.bfloat16)
    maps = [x.to(memory_format=torch.channels_last).requires_grad_() for x in inputs]
    for launches in zip(*(recorded_launches(layer, x) for x in maps), strict=True):
        turns = cycle(launches)
        seconds = clock(lambda turns=turns: launch.launch_kernel(*next(turns)), CALLS * REPLAYS)
        yield {"kernel": launches[0][0], "µs": round(seconds * 1e6, 1)}


def recorded_launches(module: nn.Module, x: Tensor) -> list[tuple[Any, ...]]:
    """The kernels that forward and backward launch, with their arguments."""
    launches, launch_kernel = [], launch.launch_kernel

    def note(*words: Any) -> None:
        launches.append(words)
        launch_kernel(*words)

    with patch.object(launch, "launch_kernel", note):
        _differentiate(module, x)
    return launches


def _differentiate(module: nn.Module, x: Tensor) -> None:
    torch.autograd.grad(module(x).float().sum(), [x, *module.parameters()])


def main() -> int:
    """Write the lines."""
    if not torch.cuda.is_available():
        sys.stderr.write("torch finds no GPU here\n")
        return 1
    use_halo()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.backends.cudnn.benchmark = True
    for shape in SHAPES:
        _write_rows(measured_rows(shape, 128, device, clock_of(device)))
    _write_rows(layer_rows(device, clock_of(device)))
    _write_rows(kernel_rows(device, clock_of(device)))
    return 0


def _write_rows(rows: Iterator[dict[str, Any]]) -> None:
    for row in rows:
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Times by turns; what a call costs besides; and whether the machine had nothing else to do."""

import ctypes
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from math import ceil, prod
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from neural_similarity_paper.tables.costs import QUIET

LEAST_ROUNDS = 3
"""Fewest rounds in which a slow call is timed."""
SLOW = 8
"""Times of the baseline's; what takes longer takes part in fewer rounds."""
SHORTEST = 2e-2
"""Seconds; what is shorter is called several times in a row."""
CONFIDENCE = 0.95
PROCESS, STATISTICS = Path("/proc/self"), Path("/proc/stat")
IDLE, WAITING, GUESTS = 3, 4, 8
"""Columns of the first line: idle, waiting for disks, and, counted twice, guests."""

Call = Callable[[], object]
Clock = Callable[[Call, int], float]
Shape = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a call, and its ratio to the baseline's in the same round."""

    seconds: float
    """Median over the rounds, as `ratio` is."""
    spread: float
    """Distance of the quartiles over the median."""
    ratio: float
    low: float
    """Of the ratio's interval, see `median_interval`; `high` as well."""
    high: float
    rounds: int
    """In how many rounds it was timed."""


def measure(
    calls: Mapping[str, Call], rounds: int, attempts: int, clock: Clock
) -> dict[str, Timing]:
    """Time the calls by turns; the first of them is the baseline.

    All are timed again while the baseline's times say that the machine was not quiet. The attempt
    with the calmest baseline counts, whatever the others' times.

    Args:
        calls: What to time, by name.
        rounds: In each everything is timed once, starting with another one each time.
        attempts: How often to measure anew, at most, where the machine was not quiet.
        clock: Seconds of one call when it is called so many times.
    """
    once = {name: max(clock(call, 1), 1e-9) for name, call in calls.items()}
    baseline, most = next(iter(calls)), rounds // LEAST_ROUNDS
    every = {name: min(ceil(s / once[baseline] / SLOW), most) for name, s in once.items()}
    repeats = {name: ceil(SHORTEST / seconds) for name, seconds in once.items()}

    def attempt() -> dict[str, Timing]:
        times: dict[str, dict[int, float]] = {name: {} for name in calls}
        for turn in range(rounds):
            names = list(calls)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if turn % every[name] == 0:
                    times[name][turn] = clock(calls[name], repeats[name])
        return {name: _timing(own, times[baseline]) for name, own in times.items()}

    found = [attempt()]
    while found[-1][baseline].spread > QUIET and len(found) < attempts:
        found.append(attempt())
    return min(found, key=lambda times: times[baseline].spread)


def _timing(own: Mapping[int, float], baseline: Mapping[int, float]) -> Timing:
    """What seconds by round amount to, beside those of the baseline."""
    ratios = [value / baseline[turn] for turn, value in own.items()]
    lower, middle, upper = quantiles(own.values(), n=4, method="inclusive")
    low, high = median_interval(ratios)
    return Timing(
        seconds=middle,
        spread=(upper - lower) / middle,
        ratio=median(ratios),
        low=low,
        high=high,
        rounds=len(ratios),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median by the ranks of the values, whatever their distribution.

    From the k-th smallest value to the k-th largest, k by the binomial distribution (sign test); of
    five values or fewer, which give no such interval, from the smallest to the largest.
    """
    from scipy.stats import binom

    rank = int(binom.ppf((1 - CONFIDENCE) / 2, len(values), 0.5))
    ordered, outer = sorted(values), max(rank - 1, 0)
    return ordered[outer], ordered[-1 - outer]


def seconds_per_call(
    call: Call, repeats: int, timer: Callable[[], float] = time.perf_counter
) -> float:
    """Wall time of a call, the mean of so many in a row, after one that does not count.

    `time.process_time` as the `timer` counts the process's own time on all cores instead.

    First calls compile, and what ran before leaves caches and the allocator in a state of its own:
    one of two equal networks was 11 % slower for what it came after.
    """
    call()
    _synchronize()
    began = timer()
    for _ in range(repeats):
        call()
    _synchronize()
    return (timer() - began) / repeats


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        for device in filter(torch.cuda.memory_reserved, range(torch.cuda.device_count())):
            torch.cuda.synchronize(device)


def python_frames(call: Call) -> int:
    """How many Python functions a call runs, those of torch among them."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
    return events.count("call")


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

    formulas: dict[Any, Callable[..., int]] = {
        torch.ops.aten.mul: lambda *_, out_shape: 2 * prod(out_shape)
    }
    with suppress(ImportError):  # A first call would register the operator after this look.
        import_module("torchvision.ops")
    if hasattr(torch.ops.torchvision, "deform_conv2d"):
        formulas[torch.ops.torchvision.deform_conv2d] = _deformable_flops
    # Not without autograd: torch's counter does not take views of parameters there.
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2


def _deformable_flops(x: Shape, weight: Shape, *_: Any, out_shape: Shape) -> int:
    taps, positions = prod(weight[2:]), out_shape[0] * prod(out_shape[2:])
    return 2 * (prod(weight) * positions + x[1] * taps * positions)


def peak_bytes(call: Call, device: torch.device) -> int | None:
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


def _give_back_memory() -> bool:
    """Return freed memory to the system and forget earlier peaks; False where that is not known."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except (AttributeError, OSError):
        return False
    return True


def _resident(name: str) -> int:
    """Bytes of the process in memory, now ("VmRSS") or at most ("VmHWM")."""
    text = (PROCESS / "status").read_text(encoding="ascii")
    return 1024 * int(re.findall(rf"{name}:\s+(\d+) kB", text)[0])


class Watch:
    """How much of the machine's time other processes take, from its making on."""

    def __init__(self) -> None:
        self.began = _readings()

    def others(self) -> float | None:
        """Cores that were busy with other processes, on average; None where unknown."""
        if self.began is None or (now := _readings()) is None:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self.began, strict=True))
        return max(0.0, busy - own) / wall if wall else None


def _readings() -> tuple[float, float, float] | None:
    """Seconds of all cores in work, of this process and its ended children, of the clock."""
    if not STATISTICS.exists():
        return None
    fields = STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields[:GUESTS]]
    busy = (sum(ticks) - ticks[IDLE] - ticks[WAITING]) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return busy, sum(own[:4]), own.elapsed

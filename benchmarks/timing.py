"""Times of several things by turns, and how each compares with the first in the same round."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, comb
from statistics import median, quantiles

import torch

from neural_similarity.choices import require_least
from neural_similarity.lab.paper.costs import QUIET

LEAST_ROUNDS = 3
"""Fewest rounds in which a slow call is timed."""
SHORTEST = 2e-2
"""Seconds; what is shorter is called several times in a row."""
CONFIDENCE = 0.95

Call = Callable[[], object]
Clock = Callable[[Call, int], float]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int = 15
    """In each round everything is timed once, starting with another one each time."""
    seconds: float = 3.0
    """What would take longer in all of the rounds takes part in fewer, at least three."""
    attempts: int = 3
    """How often to measure anew, at most, where the machine was not quiet."""

    def __post_init__(self) -> None:
        require_least("rounds", self.rounds, LEAST_ROUNDS)
        require_least("attempts", self.attempts)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a call, and its ratio to the baseline's in the same round."""

    seconds: float
    """Median over the rounds."""
    spread: float
    """Distance of the quartiles over the median."""
    ratio: float
    """Median of the ratios."""
    low: float
    """Lower end of the ratio's interval, see `interval`."""
    high: float
    """Upper end."""
    rounds: int
    """In how many rounds it was timed."""


def measure(
    calls: Mapping[str, Call], effort: Effort, clock: Clock | None = None
) -> dict[str, Timing]:
    """Time the calls by turns, as often as `quietest` asks; the first of them is the baseline.

    Args:
        calls: What to time, by name.
        effort: How long.
        clock: Seconds of one call when it is called so many times; by default measured.
    """
    clock = clock or seconds_per_call
    baseline = next(iter(calls))
    every, repeats = {}, {}
    for name, call in calls.items():
        once = max(clock(call, 1), 1e-9)
        every[name] = max(1, min(ceil(once * effort.rounds / effort.seconds), effort.rounds // 3))
        repeats[name] = max(1, ceil(SHORTEST / once))
    every[baseline] = 1

    def attempt() -> dict[str, Timing]:
        times: dict[str, dict[int, float]] = {name: {} for name in calls}
        for turn in range(effort.rounds):
            for name in _rotated(list(calls), turn):
                if turn % every[name] == 0:
                    times[name][turn] = clock(calls[name], repeats[name])
        return {name: timing(own, times[baseline]) for name, own in times.items()}

    return quietest(attempt, baseline, effort)


def quietest(
    attempt: Callable[[], dict[str, Timing]], baseline: str, effort: Effort
) -> dict[str, Timing]:
    """Measure again while the baseline's times say that the machine was not quiet.

    The attempt with the calmest baseline counts, whatever the others' times.

    Args:
        attempt: Measures everything once.
        baseline: The name of what the others are compared with.
        effort: How many attempts, at most.
    """
    found = [attempt()]
    while found[-1][baseline].spread > QUIET and len(found) < effort.attempts:
        found.append(attempt())
    return min(found, key=lambda times: times[baseline].spread)


def timing(own: Mapping[int, float], baseline: Mapping[int, float]) -> Timing:
    """What the seconds of some rounds amount to, beside those of the baseline.

    Args:
        own: Seconds by round.
        baseline: The baseline's, of these rounds at least.
    """
    seconds = list(own.values())
    ratios = [value / baseline[turn] for turn, value in own.items()]
    low, high = interval(ratios)
    lower, middle, upper = quantiles(seconds, n=4, method="inclusive")
    return Timing(
        seconds=middle,
        spread=(upper - lower) / middle,
        ratio=median(ratios),
        low=low,
        high=high,
        rounds=len(ratios),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median by the ranks of the values, whatever their distribution.

    From the k-th smallest value to the k-th largest, k by the binomial distribution (sign test); of
    five values or fewer, which give no such interval, from the smallest to the largest.
    """
    ordered, n = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < n // 2:
        tail += comb(n, rank) / 2**n
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    outer = max(rank - 1, 0)
    return ordered[outer], ordered[n - 1 - outer]


def seconds_per_call(call: Call, repeats: int) -> float:
    """Wall time of a call, the mean of so many in a row, after one that does not count.

    First calls compile, and what ran before leaves caches and the allocator in a state of its own:
    one of two equal networks was 11 % slower for what it came after.
    """
    call()
    _synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    _synchronize()
    return (time.perf_counter() - began) / repeats


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):
                torch.cuda.synchronize(device)


def _rotated(names: list[str], turn: int) -> list[str]:
    shift = turn % len(names)
    return names[shift:] + names[:shift]

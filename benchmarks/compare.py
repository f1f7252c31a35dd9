"""Whatever is compared is checked first, then timed by turns, then weighed."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import Case
from benchmarks.measure import Call, Clock, Timing, measure, peak_bytes, seconds_per_call
from benchmarks.oracle import Errors
from benchmarks.replays import Replays, clock_of
from benchmarks.report import Group, Row, group_title
from neural_similarity.lab.train.runtime import cpu_threads, tuned_convolutions

SETS = 3
"""Copies of the operands that a GPU is given by turns."""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One of the things that are compared."""

    name: str
    errors: Callable[[], Errors]
    """How far it is from what is right, by the dtype computed in; the first is shown."""
    calls: Mapping[str, Call]
    """What is timed, by name; memory is told of the last."""
    costs: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    """What is told besides, by name."""
    speeds: Mapping[str, int] = field(default_factory=dict)
    """How much of something the last call does, by the name of the speed."""
    may_fail: bool = False
    """Whether it may lack times because its check fails, as of what is not installed."""


def cpu_clock(case: Case) -> Clock | None:
    """CPU time of the process; on a GPU its own clock."""
    on_cpu = case.runtime.device.type == "cpu"
    return partial(seconds_per_call, timer=time.process_time) if on_cpu else None


def compare(
    group: Group, entrants: Sequence[Entrant], case: Case, clock: Clock | None = None
) -> list[Row]:
    """A row for every entrant, the baseline first, with every number of CPU threads.

    What computes something wrong, or fails where it may, has no times, and beside such a baseline
    nothing has.
    Without a clock, a GPU's times are of replays.
    """
    rows, clock = [], clock or clock_of(case.runtime.device)
    for count in case.threads:
        setting = group | {"threads": count}
        sys.stderr.write(f"{group_title(setting)}\n")
        with cpu_threads(count), tuned_convolutions():
            rows += _timed_rows(setting, entrants, case, clock)
    return rows


def _timed_rows(
    group: Group, entrants: Sequence[Entrant], case: Case, clock: Clock
) -> Iterator[Row]:
    rows = [replace(_checked_row(one, group), baseline=one is entrants[0]) for one in entrants]
    right = [one for one, row in zip(entrants, rows, strict=True) if not row.problem]
    found = {}
    for what in () if rows[0].problem else entrants[0].calls:
        calls = {one.name: one.calls[what] for one in right}
        found[what] = measure(calls, case.rounds, case.attempts, clock)
    for one, row in zip(entrants, rows, strict=True):
        times = {what: times[one.name] for what, times in found.items() if one.name in times}
        yield replace(row, times=times, costs=_costs_of(one, times, case, clock) if times else {})


def _checked_row(one: Entrant, group: Group) -> Row:
    """The row of an entrant without numbers."""
    row = Row(group=group, name=one.name)
    try:
        with without_tf32():
            errors = one.errors()
    except (ImportError, RuntimeError, ValueError) as error:
        if not one.may_fail:
            raise
        reason = str(error).splitlines()[0].split(", ")[-1]  # Behind the place in its source.
        return replace(row, problem=f"not measured: {reason}")
    reason, error = problem(errors), next(iter(errors.values()))
    return replace(row, problem=reason, wrong=reason is not None, error=error)


def _costs_of(
    one: Entrant, times: Mapping[str, Timing], case: Case, clock: Clock
) -> dict[str, float]:
    last, call = list(one.calls.items())[-1]
    costs = {name: count / times[last].seconds for name, count in one.speeds.items()}
    costs |= {
        "host_seconds": clock.host_seconds(call) if isinstance(clock, Replays) else None,
        "peak_bytes": peak_bytes(call, case.runtime.device),
        **{name: cost() for name, cost in one.costs.items()},
    }
    return {name: value for name, value in costs.items() if value is not None}


@contextmanager
def without_tf32():
    """A GPU multiplies float32 as float32 within; by default torch's convolutions round it to TF32.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    # By the older switch of convolutions: by the newer one, torch cannot read the older.
    convolutions: Any = torch.backends.cudnn
    products = torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.fp32_precision
    try:
        convolutions.allow_tf32, products.fp32_precision = False, "ieee"
        yield
    finally:
        convolutions.allow_tf32, products.fp32_precision = before


def tolerance(dtype: torch.dtype) -> float:
    """The largest error that is rounding: half of the digits of `dtype` must be right."""
    return sqrt(torch.finfo(dtype).eps)


def problem(errors: Errors) -> str | None:
    """What is wrong with an entrant of these errors, or None."""
    for dtype, error in errors.items():
        if not error <= tolerance(dtype):
            name, limit = str(dtype).removeprefix("torch."), tolerance(dtype)
            return f"wrong: error {error:.1e} in {name}, allowed {limit:.1e}"
    return None


def forward_call(module: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The forward pass alone, without autograd."""
    return torch.no_grad()(alternated_calls(module, inputs))


def alternated_calls(
    function: Callable[..., Any], inputs: Sequence[Tensor], sets: int | None = None
) -> Call:
    """Calls of a function with these inputs and, by turns, with copies of them.

    On a GPU `SETS` of them, else one: the same operands would stay in a GPU's cache from call to
    call, as they do in no network.
    """
    sets = sets or (SETS if inputs[0].is_cuda else 1)
    turns = cycle([inputs, *(copies_of(inputs) for _ in range(sets - 1))])
    return lambda: function(*next(turns))


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Leaves with the same values and memory layout, which require gradients where these do."""
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]

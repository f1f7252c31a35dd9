"""Whatever is compared is checked first, then timed by turns, then weighed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import Case
from benchmarks.measure import Call, Clock, Timing, measure
from benchmarks.oracle import Errors
from benchmarks.report import Group, Row, title
from neural_similarity.lab.train.runtime import threads

Costs = Callable[[Mapping[str, Timing]], Mapping[str, float | None]]
"""What else is told, given the times; None is unknown."""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One of the things that are compared."""

    name: str
    errors: Callable[[], Errors]
    """How far it is from what is right, by the dtype computed in; the first is shown."""
    calls: Mapping[str, Call]
    """What is timed, by name."""
    costs: Costs
    """What is told besides times."""


def compare(
    group: Group, entrants: Sequence[Entrant], case: Case, clock: Clock | None = None
) -> list[Row]:
    """A row for every entrant, the baseline first, with every number of CPU threads.

    What computes something wrong or fails has no times, and beside such a baseline nothing has.
    """
    rows = []
    for count in case.threads:
        told = group | {"threads": count}
        sys.stderr.write(f"{title(told)}\n")
        with threads(count):
            rows += _compared(told, entrants, case, clock)
    return rows


def _compared(
    group: Group, entrants: Sequence[Entrant], case: Case, clock: Clock | None
) -> list[Row]:
    rows = [replace(_checked(one, group), baseline=one is entrants[0]) for one in entrants]
    if rows[0].problem:
        return rows
    pairs = zip(entrants, rows, strict=True)
    right = {one.name: one for one, row in pairs if not row.problem}
    found = {}
    for what in entrants[0].calls:
        calls = {name: one.calls[what] for name, one in right.items()}
        found[what] = measure(calls, case.rounds, case.attempts, clock)
    times = {name: {what: timings[name] for what, timings in found.items()} for name in right}
    return [
        _weighed(row, right[row.name], times[row.name]) if row.name in right else row
        for row in rows
    ]


def _checked(one: Entrant, group: Group) -> Row:
    """The row of an entrant without numbers."""
    row = Row(group=group, name=one.name)
    try:
        with without_tf32():
            errors = one.errors()
    except (ImportError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].split(", ")[-1]  # Behind the place in its source.
        return replace(row, problem=f"not measured: {reason}")
    reason, error = problem(errors), next(iter(errors.values()))
    return replace(row, problem=reason, wrong=reason is not None, error=error)


def _weighed(row: Row, one: Entrant, times: dict[str, Timing]) -> Row:
    costs = {name: value for name, value in one.costs(times).items() if value is not None}
    return replace(row, times=times, costs=costs)


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


def forward(module: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The forward pass alone, without autograd."""
    return torch.no_grad()(partial(module, *inputs))

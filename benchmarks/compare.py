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

from benchmarks.case import Absent, Subject
from benchmarks.measure import Call, Clock, Effort, Timing, measure
from benchmarks.oracle import Checker, Errors
from benchmarks.report import Group, Row, title
from neural_similarity.lab.train.runtime import threads

Costs = Callable[[Mapping[str, Timing]], Mapping[str, float | None]]
"""What else is told, given the times; None is unknown."""


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One of the things that are compared."""

    name: str
    """What it is called in tables."""
    errors: Callable[[], Errors]
    """How far it is from what is right, by the dtype computed in; the first is shown."""
    calls: Mapping[str, Call]
    """What is timed, by name."""
    costs: Costs
    """What is told besides times."""
    steps: int = 1
    """How often a call does what is timed."""


def entrant(subject: Subject, checker: Checker, calls: Mapping[str, Call], costs: Costs) -> Entrant:
    """A module, compared with its oracle."""
    errors = partial(checker.errors, subject)
    return Entrant(name=subject.name, errors=errors, calls=calls, costs=costs)


def compare(
    group: Group, entrants: Sequence[Entrant | Absent], effort: Effort, clock: Clock | None = None
) -> list[Row]:
    """A row for every entrant, the baseline first, with every number of CPU threads.

    What computes something wrong has no times, and beside a wrong baseline nothing has.

    Args:
        group: What the rows have in common.
        entrants: What is compared.
        effort: How long to measure.
        clock: As in `measure`.
    """
    rows = []
    for count in effort.threads:
        told = group | {"threads": count}
        sys.stderr.write(f"{title(told)}\n")
        sys.stderr.flush()
        with threads(count):
            rows += _compared(told, entrants, effort, clock)
    return rows


def _compared(
    group: Group, entrants: Sequence[Entrant | Absent], effort: Effort, clock: Clock | None
) -> list[Row]:
    rows = [replace(_checked(one, group), baseline=one is entrants[0]) for one in entrants]
    right = {
        one.name: one
        for one, row in zip(entrants, rows, strict=True)
        if isinstance(one, Entrant) and not row.problem
    }
    if rows[0].problem:
        return rows
    times: dict[str, dict[str, Timing]] = {name: {} for name in right}
    for what in next(iter(right.values())).calls:
        measured = measure({name: one.calls[what] for name, one in right.items()}, effort, clock)
        for name, timing in measured.items():
            seconds = timing.seconds / right[name].steps
            times[name][what] = replace(timing, seconds=seconds)
    return [_weighed(row, right[row.name], times) if row.name in right else row for row in rows]


def _checked(one: Entrant | Absent, group: Group) -> Row:
    """The row of an entrant without numbers."""
    if isinstance(one, Absent):
        return Row(group=group, name=one.name, problem=f"not measured: {one.reason}")
    with without_tf32():
        errors = one.errors()
    reason, error = problem(errors), next(iter(errors.values()))
    return Row(group=group, name=one.name, problem=reason, wrong=reason is not None, error=error)


def _weighed(row: Row, one: Entrant, times: Mapping[str, dict[str, Timing]]) -> Row:
    own = times[row.name]
    costs = {name: value for name, value in one.costs(own).items() if value is not None}
    return replace(row, times=own, costs=costs)


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

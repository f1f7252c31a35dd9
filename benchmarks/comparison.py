"""Subjects side by side: each is checked, then weighed, then all are timed by turns."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.checking import Checker, outcome, problem, trained
from benchmarks.report import Row, title
from benchmarks.subject import Absent, Subject
from benchmarks.timing import Call, Effort, Timing, measure
from neural_similarity.lab.train.runtime import threads


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and how."""

    group: dict[str, str | int]
    """What the subjects have in common."""
    subjects: Sequence[Subject | Absent]
    """The baseline first."""
    grad: Tensor
    """Gradient of every output, for the check."""
    dtype: torch.dtype
    """In which the subjects compute, for the check."""
    timed: Mapping[str, Callable[[Subject], Call]]
    """What is timed of a subject, by name."""
    costs: Callable[[Subject, Mapping[str, Timing]], Mapping[str, float | None]]
    """What else is told of a subject, None being unknown, given its times."""


def by_threads(comparison: Comparison, counts: Sequence[int], effort: Effort) -> list[Row]:
    """`compare` with every number of CPU threads, which the groups tell last."""
    rows = []
    for count in counts:
        with threads(count):
            group = comparison.group | {"threads": count}
            rows += compare(replace(comparison, group=group), effort)
    return rows


def compare(comparison: Comparison, effort: Effort) -> list[Row]:
    """A row for every subject; what computes something wrong has no times."""
    sys.stderr.write(f"{title(comparison.group)}\n")
    sys.stderr.flush()
    rows = _checked(comparison)
    right = [s for s in comparison.subjects if isinstance(s, Subject) and not rows[s.name].problem]
    baseline = comparison.subjects[0].name
    if rows[baseline].problem:  # Then there is nothing to compare with.
        return list(rows.values())
    timings: dict[str, dict[str, Timing]] = {subject.name: {} for subject in right}
    for what, call in comparison.timed.items():
        measured = measure({subject.name: call(subject) for subject in right}, effort)
        for name, timing in measured.items():
            timings[name][what] = timing
    for subject in right:
        times = timings[subject.name]
        costs = comparison.costs(subject, times).items()
        known = {name: value for name, value in costs if value is not None}
        rows[subject.name] = replace(rows[subject.name], times=times, costs=known)
    return list(rows.values())


def forward(subject: Subject) -> Call:
    """The forward pass alone, without autograd."""

    def call() -> None:
        with torch.no_grad():
            subject.module(*subject.inputs)

    return call


def forward_and_backward(subject: Subject, grad: Tensor) -> Call:
    """The output and all gradients."""
    parameters = trained(subject.module)
    return lambda: outcome(subject.module, subject.inputs, parameters, grad)


def _checked(comparison: Comparison) -> dict[str, Row]:
    """The rows without numbers, as far as the check goes."""
    checker = Checker(comparison.grad, comparison.dtype)
    return {subject.name: _verdict(subject, comparison, checker) for subject in comparison.subjects}


def _verdict(subject: Subject | Absent, comparison: Comparison, checker: Checker) -> Row:
    group, baseline = comparison.group, subject is comparison.subjects[0]
    if isinstance(subject, Absent):
        reason = f"not measured: {subject.reason}"
        return Row(group=group, name=subject.name, baseline=baseline, problem=reason)
    errors = checker.errors(subject)
    reason = problem(errors)
    return Row(
        group=group,
        name=subject.name,
        baseline=baseline,
        problem=reason,
        wrong=reason is not None,
        error=errors[comparison.dtype],
    )

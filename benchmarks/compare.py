"""Whatever is compared is checked first, then timed by turns, then weighed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan, sqrt

import torch
from torch import Tensor, nn

from benchmarks.case import Absent, Subject
from benchmarks.measure import Call, Effort, Timing, measure
from benchmarks.report import Group, Row, title
from neural_similarity.lab.train.runtime import threads

Errors = Mapping[torch.dtype, float]


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One of the things that are compared."""

    name: str
    """What it is called in tables."""
    errors: Callable[[], Errors]
    """How far it is from what is right, by the dtype computed in; the first is shown."""
    calls: Mapping[str, Call]
    """What is timed, by name."""
    costs: Callable[[Mapping[str, Timing]], Mapping[str, float | None]]
    """What else is told, given its times; None is unknown."""
    steps: int = 1
    """How often a call does what is timed."""


def compare(group: Group, entrants: Sequence[Entrant | Absent], effort: Effort) -> list[Row]:
    """A row for every entrant, the baseline first, with every number of CPU threads.

    What computes something wrong has no times, and beside a wrong baseline nothing has.
    """
    rows = []
    for count in effort.threads:
        told = group | {"threads": count}
        sys.stderr.write(f"{title(told)}\n")
        sys.stderr.flush()
        with threads(count):
            rows += _compared(told, entrants, effort)
    return rows


def _compared(group: Group, entrants: Sequence[Entrant | Absent], effort: Effort) -> list[Row]:
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
        measured = measure({name: one.calls[what] for name, one in right.items()}, effort)
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


class Checker:
    """Compares subjects with their oracles in float64, gradients included.

    Args:
        grad: Gradient of every subject's output.
        dtype: In which the subjects compute.
    """

    def __init__(self, grad: Tensor, dtype: torch.dtype):
        self.grad, self.dtype = grad, dtype
        self.known: dict[tuple, list[Tensor]] = {}

    def errors(self, subject: Subject) -> Errors:
        """The largest error of the output or of a gradient, by the dtype that it was computed in.

        Gradients that rounding may change at will are compared in float64.
        """
        if subject.smooth:
            found = outcome(subject.module, subject.inputs, trained(subject.module), self.grad)
            return {self.dtype: _largest(found, self._expected(subject))}
        twin = deepcopy(subject.module).double()
        exact = outcome(twin, _in_float64(subject.inputs), trained(twin), self.grad)
        expected = _by_oracle(subject, self.grad)
        return {self.dtype: _output_error(subject), torch.float64: _largest(exact, expected)}

    def _expected(self, subject: Subject) -> list[Tensor]:
        """What formulations of the same operator, kernel and inputs must compute, computed once."""
        operands = *subject.inputs, *subject.module.parameters()
        key = subject.oracle, *map(id, operands)
        if key not in self.known:
            self.known[key] = _by_oracle(subject, self.grad)
        return self.known[key]


@contextmanager
def without_tf32():
    """A GPU multiplies float32 as float32 within; by default torch's convolutions round it to TF32.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    convolutions = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    kinds = convolutions, torch.backends.cuda.matmul
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected, float64; NaN counts as infinite."""
    difference, length = (found.double() - expected).norm().item(), expected.norm().item()
    value = difference / length if length else difference
    return inf if isnan(value) else value


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


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module whose gradients count."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def forward(module: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The forward pass alone, without autograd."""
    return torch.no_grad()(partial(module, *inputs))


def outcome(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    grad: Tensor,
) -> list[Tensor]:
    """The output, then the gradients of the inputs that require one and of the parameters."""
    y = function(*inputs)
    wanted = [tensor for tensor in inputs if tensor.requires_grad] + list(parameters)
    gradients = torch.autograd.grad(y, wanted, grad.to(y.dtype)) if wanted else ()
    return [y.detach(), *gradients]


def _by_oracle(subject: Subject, grad: Tensor) -> list[Tensor]:
    twin = deepcopy(subject.module).double()
    function = partial(subject.oracle, twin)
    return outcome(function, _in_float64(subject.inputs), trained(twin), grad)


def _output_error(subject: Subject) -> float:
    """Error of the output alone, in the subject's own precision and in evaluation mode."""
    module = deepcopy(subject.module).eval()
    with torch.no_grad():
        found = module(*subject.inputs)
        return relative(found, subject.oracle(module.double(), *_in_float64(subject.inputs)))


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(relative(*pair) for pair in zip(found, expected, strict=True))


def _in_float64(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]

"""`nsim bench operators` and `scaling`: our operators beside other formulations and operators."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from benchmarks.case import Case, operands
from benchmarks.comparison import (
    Comparison,
    by_threads,
    forward,
    forward_and_backward,
)
from benchmarks.costs import macs, peak_bytes, saved_bytes
from benchmarks.ratios import BOTH, FORWARD
from benchmarks.report import Row
from benchmarks.subject import Absent, Subject
from benchmarks.subjects import dynamic, plain, subjects
from benchmarks.timing import Effort, Timing


def operators(cases: Iterable[Case], counts: Sequence[int], effort: Effort) -> list[Row]:
    """All operators, at every case and with every number of CPU threads."""
    rows = []
    for case in cases:
        given = operands(case)
        chosen = list(subjects(case, given))
        group = {"similarity": case.kind} | _sizes(case)
        rows += by_threads(_comparison(case, chosen, given.grad, group), counts, effort)
    return rows


def scaling(
    sweeps: Mapping[str, Iterable[Case]], counts: Sequence[int], effort: Effort
) -> list[Row]:
    """The baseline and our two operators, each as fast as it is; a case's own kind is ignored."""
    rows = []
    for sweep, case in ((name, case) for name, cases in sweeps.items() for case in cases):
        diagonal, full = (replace(case, kind=kind) for kind in ("diagonal", "full"))
        given = operands(diagonal)
        chosen = [
            plain(diagonal, given),
            dynamic("ours, diagonal", diagonal, given),
            dynamic("ours, full", full, operands(full)),
        ]
        group = {"sweep": sweep} | _sizes(case)
        rows += by_threads(_comparison(case, chosen, given.grad, group), counts, effort)
    return rows


def _comparison(
    case: Case,
    chosen: Sequence[Subject | Absent],
    grad: Tensor,
    group: dict[str, str | int],
) -> Comparison:
    both = partial(forward_and_backward, grad=grad)

    def costs(subject: Subject, _: Mapping[str, Timing]) -> dict[str, float | None]:
        return {
            "saved_bytes": saved_bytes(subject.module, subject.inputs) / case.positions,
            "peak_bytes": peak_bytes(both(subject), case.device),
            "macs": macs(subject.module, subject.inputs) / case.batch,
        }

    return Comparison(
        group=group,
        subjects=chosen,
        grad=grad,
        dtype=case.torch_dtype,
        timed={FORWARD: forward, BOTH: both},
        costs=costs,
    )


def _sizes(case: Case) -> dict[str, str | int]:
    return {
        "dtype": case.dtype,
        "channels": case.channels,
        "size": case.size,
        "batch": case.batch,
    }

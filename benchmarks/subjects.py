"""The operators that are compared: ours, other formulations of the same, and other operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from benchmarks import formulations, oracle
from benchmarks.case import (
    KERNEL,
    KINDS,
    PADDING,
    TAPS,
    Absent,
    Case,
    Operands,
    Operator,
    Placed,
    Subject,
    learn,
    operands,
    seeded,
)
from benchmarks.compare import Entrant, compare, entrant, forward
from benchmarks.measure import Effort, Timing, macs, peak_bytes, saved_bytes
from benchmarks.oracle import Checker, outcome, trained
from benchmarks.replays import clock_of
from benchmarks.report import Row
from neural_similarity.functional import similarity_conv2d
from neural_similarity.nn import Conv2d
from neural_similarity.ops import declines
from neural_similarity.ops.backend import Backend

BASELINE = "nn.Conv2d"
LAYER = "ours, layer with predictor"
FORWARD, BOTH = "forward", "forward + backward"
BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cpu": ("compiled", "eager"),
    "cuda": ("triton", "eager"),
}
"""Our ways, by the kind of device."""


def operators(case: Case, effort: Effort) -> list[Row]:
    """All operators at a case."""
    given = operands(case)
    return _compared({"similarity": case.kind}, case, list(subjects(case, given)), given, effort)


def widths(layout: str, case: Case, effort: Effort) -> list[Row]:
    """The baseline, our operator as fast as it is, and the layer, in a layout of maps."""
    given = operands(case)
    chosen = [plain(given), dynamic("ours", case, given), layer(case, given)]
    return _compared({"layout": layout, "similarity": case.kind}, case, chosen, given, effort)


def scaling(sweep: str, case: Case, effort: Effort) -> list[Row]:
    """The baseline and our two operators, each as fast as it is, at one size of a sweep."""
    given = operands(case)
    chosen = [plain(given)]
    for kind in KINDS:
        of_kind = replace(case, kind=kind)
        chosen.append(dynamic(f"ours, {kind}", of_kind, operands(of_kind)))
    return _compared({"sweep": sweep}, case, chosen, given, effort)


def _compared(
    words: dict[str, str],
    case: Case,
    chosen: Sequence[Subject | Absent],
    given: Operands,
    effort: Effort,
) -> list[Row]:
    checker, clock = Checker(given.grad, case.dtype), clock_of(case.runtime.device)

    def enter(subject: Subject) -> Entrant:
        module, inputs, parameters = subject.module, subject.inputs, trained(subject.module)
        both = partial(outcome, module, inputs, parameters, given.grad)

        def costs(_: Mapping[str, Timing]) -> dict[str, float | None]:
            return {
                "host_seconds": clock and clock.host_seconds(both),
                "saved_bytes": saved_bytes(module, inputs) / (case.batch * case.size**2),
                "peak_bytes": peak_bytes(both, case.runtime.device),
                "macs": macs(module, inputs) / case.batch,
            }

        calls = {FORWARD: forward(module, inputs), BOTH: both}
        return entrant(subject, checker, calls, costs)

    sizes = {"channels": case.channels, "size": case.size, "batch": case.batch}
    entrants = [one if isinstance(one, Absent) else enter(one) for one in chosen]
    return compare(words | {"dtype": case.runtime.precision} | sizes, entrants, effort, clock)


def subjects(case: Case, given: Operands) -> Iterator[Subject | Absent]:
    """What is compared at a case, the baseline first."""
    yield plain(given)
    for backend in BACKENDS[given.x.device.type]:
        reason = declines(backend, given.x, TAPS)
        name = f"ours, {backend}"
        yield Absent(name, reason) if reason else dynamic(name, case, given, backend)
    static = partial(similarity_conv2d, padding=PADDING)
    yield _operator(f"ours, static {case.kind}", static, given, given.static)
    for name, function in formulations.BY_KIND[case.kind].items():
        reason = _fails(function, given)
        yield Absent(name, reason) if reason else _operator(name, function, given, given.dynamic)
    yield layer(case, given)


def plain(given: Operands) -> Subject:
    """torch's convolution with the same kernel."""
    channels = len(given.weight)
    module = nn.Conv2d(channels, channels, KERNEL, padding=PADDING, bias=False)
    module.weight = given.weight
    return Subject(name=BASELINE, module=module, inputs=(given.x,), oracle=oracle.network)


def dynamic(name: str, case: Case, given: Operands, backend: Backend = "auto") -> Subject:
    """Our operator with an M at every position, without what predicts it."""

    def function(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
        m = m.unflatten(1, case.taps)
        return similarity_conv2d(x, weight, m, padding=PADDING, backend=backend)

    return _operator(name, function, given, given.dynamic)


def layer(case: Case, given: Operands) -> Subject:
    """Our dynamic layer: the operator and its predictor, in bf16 by autocast as in training."""
    width, similarity = case.channels, f"dynamic-{case.kind}"
    with seeded():
        module = Conv2d(width, width, KERNEL, padding=PADDING, bias=False, similarity=similarity)
        learn(module)
    return Subject(
        name=LAYER,
        module=Placed(module, case.runtime),
        inputs=(given.x,),
        oracle=oracle.network,
        smooth=False,
    )


def _operator(name: str, function: Callable[..., Tensor], given: Operands, m: Tensor) -> Subject:
    module = Operator(function, given.weight)
    return Subject(name=name, module=module, inputs=(given.x, m), oracle=oracle.operator)


def _fails(function: Callable[..., Tensor], given: Operands) -> str | None:
    """Why a formulation cannot take a pixel of these operands, or None if it can."""
    try:
        function(given.x[:1, :, :1, :1], given.weight, given.dynamic[:1, :, :1, :1])
    except (ImportError, RuntimeError) as error:
        return str(error).splitlines()[0].split(", ")[-1]  # Behind the place in its source.
    return None

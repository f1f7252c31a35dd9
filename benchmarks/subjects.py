"""The operators that are compared: ours, other formulations of the same, and other operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from benchmarks import formulations, oracle
from benchmarks.case import (
    KERNEL,
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
from benchmarks.compare import Checker, Entrant, compare, forward, outcome, trained
from benchmarks.measure import Effort, Timing, macs, peak_bytes, saved_bytes
from benchmarks.report import Row
from neural_similarity.functional import similarity_conv2d
from neural_similarity.nn import Conv2d
from neural_similarity.ops import declines
from neural_similarity.ops.backend import Backend

BASELINE = "nn.Conv2d"
FORWARD, BOTH = "forward", "forward + backward"
EXPERTS = 4
FORMULATIONS: dict[str, dict[str, Callable[..., Tensor]]] = {
    "diagonal": {
        "TensorFlow form": formulations.tensorflow_diagonal,
        "unfold + matmul": formulations.unfold_diagonal,
        "deform_conv2d": formulations.deformable,
    },
    "full": {
        "TensorFlow form": formulations.tensorflow_full,
        "unfold + matmul": formulations.unfold_full,
    },
}
"""Other ways to compute the same, by the kind of M."""
BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cpu": ("compiled", "eager"),
    "cuda": ("triton", "eager"),
}
"""Our ways, by the kind of device."""


def operators(case: Case, effort: Effort) -> list[Row]:
    """All operators at a case."""
    given = operands(case)
    return _compared({"similarity": case.kind}, case, list(subjects(case, given)), given, effort)


def scaling(sweep: str, diagonal: Case, full: Case, effort: Effort) -> list[Row]:
    """The baseline and our two operators, each as fast as it is, at one size of a sweep."""
    given = operands(diagonal)
    chosen = [
        plain(given),
        dynamic("ours, diagonal", diagonal, given),
        dynamic("ours, full", full, operands(full)),
    ]
    return _compared({"sweep": sweep}, diagonal, chosen, given, effort)


def _compared(
    words: dict[str, str],
    case: Case,
    chosen: Sequence[Subject | Absent],
    given: Operands,
    effort: Effort,
) -> list[Row]:
    checker = Checker(given.grad, case.dtype)

    def entrant(subject: Subject) -> Entrant:
        module, inputs, parameters = subject.module, subject.inputs, trained(subject.module)
        both = partial(outcome, module, inputs, parameters, given.grad)

        def costs(_: Mapping[str, Timing]) -> dict[str, float | None]:
            return {
                "saved_bytes": saved_bytes(module, inputs) / (case.batch * case.size**2),
                "peak_bytes": peak_bytes(both, case.runtime.device),
                "macs": macs(module, inputs) / case.batch,
            }

        return Entrant(
            name=subject.name,
            errors=partial(checker.errors, subject),
            calls={FORWARD: forward(module, inputs), BOTH: both},
            costs=costs,
        )

    sizes = {"channels": case.channels, "size": case.size, "batch": case.batch}
    entrants = [one if isinstance(one, Absent) else entrant(one) for one in chosen]
    return compare(words | {"dtype": case.runtime.precision} | sizes, entrants, effort)


def subjects(case: Case, given: Operands) -> Iterator[Subject | Absent]:
    """What is compared at a case, the baseline first."""
    yield plain(given)
    for backend in BACKENDS[given.x.device.type]:
        reason = declines(backend, given.x, TAPS)
        name = f"ours, {backend}"
        yield Absent(name, reason) if reason else dynamic(name, case, given, backend)
    yield static(case, given)
    for name, function in FORMULATIONS[case.kind].items():
        reason = _fails(function, given)
        yield Absent(name, reason) if reason else _of_positions(name, function, given)
    yield layer(case, given)
    yield condconv(case, given)
    yield odconv(case, given)


def plain(given: Operands) -> Subject:
    """torch's convolution with the same kernel."""
    channels = len(given.weight)
    module = nn.Conv2d(channels, channels, KERNEL, padding=PADDING, bias=False)
    module.weight = given.weight
    return Subject(name=BASELINE, module=module, inputs=(given.x,), oracle=oracle.plain)


def dynamic(name: str, case: Case, given: Operands, backend: Backend = "auto") -> Subject:
    """Our operator with an M at every position, without what predicts it."""

    def function(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
        m = m.unflatten(1, case.taps)
        return similarity_conv2d(x, weight, m, padding=PADDING, backend=backend)

    return _of_positions(name, function, given)


def static(case: Case, given: Operands) -> Subject:
    """Our operator with one M, which it folds into the kernel at every call."""
    module = Operator(partial(similarity_conv2d, padding=PADDING), given.weight, given.static)
    name = f"ours, static {case.kind}"
    return Subject(name=name, module=module, inputs=(given.x,), oracle=oracle.static)


def layer(case: Case, given: Operands) -> Subject:
    """Our dynamic layer: the operator and its predictor, in bf16 by autocast as in training."""
    width, similarity = case.channels, f"dynamic-{case.kind}"
    with seeded():
        module = Conv2d(width, width, KERNEL, padding=PADDING, bias=False, similarity=similarity)
        learn(module)
    return Subject(
        name="ours, layer with predictor",
        module=Placed(module, case.runtime),
        inputs=(given.x,),
        oracle=oracle.network,
        smooth=False,
    )


def condconv(case: Case, given: Operands) -> Subject | Absent:
    """timm's CondConv2d at given routing weights: a kernel for every image, not the same."""
    name = "CondConv2d (timm)"
    if find_spec("timm") is None:
        return Absent(name, "timm is not installed")
    from timm.layers.cond_conv2d import CondConv2d

    width = case.channels
    with seeded():
        module = CondConv2d(width, width, KERNEL, padding=PADDING, num_experts=EXPERTS).to(given.x)
        routing = torch.rand(case.batch, EXPERTS).to(given.x).requires_grad_()
    return Subject(name=name, module=module, inputs=(given.x, routing), oracle=oracle.condconv)


def odconv(case: Case, given: Operands) -> Subject:
    """ODConv with its attentions: a kernel for every image, not the same.

    In evaluation mode: over few images, batch normalisation would say little but their signs.
    """
    with seeded():
        module = formulations.ODConv2d(case.channels, EXPERTS).to(given.x).eval()
    return Subject(
        name="ODConv2d", module=module, inputs=(given.x,), oracle=oracle.odconv, smooth=False
    )


def _of_positions(name: str, function: Callable[..., Tensor], given: Operands) -> Subject:
    module, inputs = Operator(function, given.weight), (given.x, given.dynamic)
    return Subject(name=name, module=module, inputs=inputs, oracle=oracle.bilinear)


def _fails(function: Callable[..., Tensor], given: Operands) -> str | None:
    """Why a formulation cannot take a pixel of these operands, or None if it can."""
    try:
        function(given.x[:1, :, :1, :1], given.weight, given.dynamic[:1, :, :1, :1])
    except (ImportError, RuntimeError) as error:
        return str(error).splitlines()[0].split(", ")[-1]  # Behind the place in its source.
    return None

"""The operators that are compared: ours, other formulations of the same, and other operators."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from benchmarks import formulations, oracle
from benchmarks.case import (
    KERNEL,
    PADDING,
    TAPS,
    Case,
    Operator,
    Placed,
    Subject,
    fixed_seed,
    move_similarities,
)
from benchmarks.compare import Entrant, alternated_calls, compare, cpu_clock, forward_call
from benchmarks.measure import Clock, macs, saved_bytes
from benchmarks.options import Options
from benchmarks.oracle import Checker, outcome, trained
from benchmarks.report import Row
from neural_similarity.functional import similarity_conv2d
from neural_similarity.nn import Conv2d, parse_similarity
from neural_similarity.ops import declines
from neural_similarity.ops.backend import Backend

BASELINE, LAYER = "nn.Conv2d", "ours, layer with predictor"
FORWARD, BOTH = "forward", "forward + backward"
BACKENDS: dict[str, tuple[Backend, ...]] = {
    "cpu": ("compiled", "eager"),
    "cuda": ("triton", "eager"),
}
"""Our ways, by the kind of device."""
EXTENT, WIDE = 1024, 3584
"""Channels times size of maps, as networks that halve one to double the other have, and ResNets."""
QUICK_SIZE = 4
MOST_FULL = 9
"""Taps up to which a full M is measured: at 49 it has 2401 numbers a position."""
LAYERS = {
    "depthwise 3×3": {"channels": 96, "groups": 96, "size": 28},
    "depthwise 5×5": {"channels": 144, "groups": 144, "size": 28, "kernel": 5},
    "depthwise 7×7": {"channels": 96, "groups": 96, "size": 28, "kernel": 7},
    "32 groups of 4": {"channels": 128, "groups": 32, "size": 28},
    "32 groups of 16": {"channels": 512, "groups": 32, "size": 14},
    "8 channels": {"channels": 8, "size": 28},
    "16 channels": {"channels": 16, "size": 28},
    "32 channels": {"channels": 32, "size": 32},
    "3 to 32 channels": {"channels": 3, "filters": 32, "size": 112},
    **{f"{width} channels": {"channels": width, "size": 28} for width in (40, 48, 80, 100)},
}
"""Shapes of layers that are neither wide nor a multiple of a tile, by name."""


def operators(options: Options) -> Iterator[Row]:
    """Our operators beside other formulations and operators."""
    for case in options.cases(options.similarity, extent=EXTENT):
        yield from compared_rows({"similarity": case.kind}, case, subjects(case))


def widths(options: Options) -> Iterator[Row]:
    """Our operators and layers at a ResNet's widths, in both layouts."""
    for case in options.cases(options.similarity, extent=WIDE, nchw=True):
        words = {"layout": case.layout, "similarity": case.kind}
        yield from compared_rows(
            words, case, [torch_layer(case), our_operator("ours", case), our_layer(case)]
        )


def layers(options: Options) -> Iterator[Row]:
    """Our operators in grouped, depthwise and narrow layers and odd widths, in CPU time."""
    for case in options.cases(options.similarity):
        for name, shape in LAYERS.items():
            one = replace(case, **shape | ({"size": QUICK_SIZE} if options.quick else {}))
            if one.kind == "full" and one.kernel**2 > MOST_FULL:
                continue
            words = {"layer": name, "similarity": one.kind}
            both = [torch_layer(one), our_operator("ours", one)]
            yield from compared_rows(words, one, both, cpu_clock(one))


def compared_rows(
    words: dict[str, str], case: Case, chosen: Iterable[Subject], clock: Clock | None = None
) -> list[Row]:
    """Rows of operators and layers: their times, forward alone and with backward, and costs."""
    checker = Checker(case.operands.grad, case.dtype)

    def enter(subject: Subject) -> Entrant:
        module, inputs = subject.module, subject.inputs

        def both(*inputs: Tensor) -> list[Tensor]:
            return outcome(module, inputs, trained(module), case.operands.grad)

        return Entrant(
            name=subject.name,
            errors=partial(checker.errors, subject),
            may_fail=subject.may_fail,
            calls={FORWARD: forward_call(module, inputs), BOTH: alternated_calls(both, inputs)},
            costs={
                "saved_bytes": lambda: saved_bytes(module, inputs) / (case.batch * case.size**2),
                "macs": lambda: macs(module, inputs) / case.batch,
            },
        )

    sizes = {"channels": case.channels, "size": case.size, "batch": case.batch}
    group = words | {"dtype": case.runtime.precision} | sizes
    return compare(group, list(map(enter, chosen)), case, clock)


def subjects(case: Case) -> Iterator[Subject]:
    """What is compared at a case, the baseline first."""
    given = case.operands
    yield torch_layer(case)
    for backend in BACKENDS[given.x.device.type]:
        declined = declines(backend, given.x, TAPS) is not None
        yield replace(our_operator(f"ours, {backend}", case, backend), may_fail=declined)
    static = partial(similarity_conv2d, padding=PADDING)
    yield _operator(f"ours, static {case.kind}", static, case, given.static)
    for name, function in formulations.BY_KIND[case.kind].items():
        yield replace(_operator(name, function, case, given.dynamic), may_fail=True)
    yield our_layer(case)


def torch_layer(case: Case) -> Subject:
    """torch's convolution with the same kernel."""
    sides = case.channels, case.filters or case.channels, case.kernel
    module = nn.Conv2d(*sides, padding=case.kernel // 2, groups=case.groups, bias=False)
    module.weight = case.operands.weight
    inputs = (case.operands.x,)
    return Subject(name=BASELINE, module=module, inputs=inputs, oracle=oracle.network)


def our_operator(name: str, case: Case, backend: Backend = "auto") -> Subject:
    """Our operator with an M at every position, without what predicts it."""

    def function(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
        m, padding = m.unflatten(1, case.taps), case.kernel // 2
        return similarity_conv2d(x, weight, m, padding=padding, groups=case.groups, backend=backend)

    return _operator(name, function, case, case.operands.dynamic)


def our_layer(case: Case, name: str = LAYER, text: str = "") -> Subject:
    """Our layer with a dynamic similarity, the default or that of `text`, in bf16 by autocast."""
    width, similarity = case.channels, parse_similarity(text or f"dynamic-{case.kind}")
    with fixed_seed():
        module = Conv2d(width, width, KERNEL, padding=PADDING, bias=False, similarity=similarity)
        move_similarities(module)
    return Subject(
        name=name,
        module=Placed(module, case.runtime),
        inputs=(case.operands.x,),
        oracle=oracle.network,
        smooth=False,
    )


def _operator(name: str, function: Callable[..., Tensor], case: Case, m: Tensor) -> Subject:
    module, inputs = Operator(function, case.operands.weight), (case.operands.x, m)
    return Subject(name=name, module=module, inputs=inputs, oracle=oracle.operator)

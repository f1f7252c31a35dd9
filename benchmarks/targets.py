"""What the project set out to reach, beside what was found."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, product
from typing import NamedTuple

from benchmarks import few_shot, loops, networks
from benchmarks.plots import GROWING, SWEEPS
from benchmarks.report import Group, Report, grouped
from benchmarks.subjects import BASELINE, BOTH, FORWARD, LAYER

COMPILED = "ours, compiled"
EVERY, SMALL, NARROW, WIDE, LARGE = (32, 64, 128), (32,), (32, 64), (64, 128), (128,)
"""Channels of the shapes that are measured: 32 at 32x32, 64 at 16x16, 128 at 8x8."""
BESIDE_CONVOLUTION = (
    ("diagonal", "compiled", FORWARD, EVERY, {"fp32": 2.5, "bf16": 2.5}),
    ("diagonal", "compiled", BOTH, SMALL, {"fp32": 3.5, "bf16": 3.5}),
    ("diagonal", "compiled", BOTH, WIDE, {"fp32": 2.5, "bf16": 2.5}),
    ("diagonal", "eager", FORWARD, EVERY, {"fp32": 4.5, "bf16": 4.5}),
    ("diagonal", "eager", BOTH, EVERY, {"fp32": 5.5, "bf16": 5.5}),
    ("full", "compiled", BOTH, SMALL, {"fp32": 5, "bf16": 7}),
    ("full", "compiled", BOTH, LARGE, {"fp32": 3.5, "bf16": 3.5}),
)
"""Kind of M, backend, what is timed, channels, and the most times of a convolution's."""
BESIDE_COMPILED = (
    ("TensorFlow form", EVERY, {"fp32": 2.5, "bf16": 2.5}),
    ("unfold + matmul", NARROW, {"fp32": 2, "bf16": 2}),
    ("unfold + matmul", LARGE, {"fp32": 1.5, "bf16": 1.5}),
    ("deform_conv2d", NARROW, {"fp32": 12}),
    ("deform_conv2d", LARGE, {"fp32": 8}),
)
"""Another formulation, channels, and the fewest times of our diagonal operator's."""

Where = Mapping[str, tuple]
"""Values of a group, by its keys."""
Values = Callable[[Report], Iterable[float]]


class Target(NamedTuple):
    """A limit on what a benchmark finds."""

    bench: str
    """Which benchmark finds it."""
    text: str
    """What is limited."""
    limit: str
    """At most ("≤ 2.5") or at least ("≥ 95 %") this, with its unit."""
    values: Values
    """All that was found of it; the worst counts."""

    def line(self, report: Report | None) -> tuple[str, str, str, str]:
        """Text, limit, what was found and whether that is enough."""
        sign, number, *unit = self.limit.split(" ")
        found = sorted(self.values(report), reverse=sign == "≥") if report else []
        if not found:
            return self.text, self.limit, "", "not measured"
        best, worst = found[0], found[-1]
        reached = worst <= float(number) if sign == "≤" else worst >= float(number)
        ends = dict.fromkeys(" ".join([f"{value:.3g}", *unit]) for value in (best, worst))
        return self.text, self.limit, " to ".join(ends), "reached" if reached else "**not reached**"


def _times(
    names: str,
    over: str,
    where: Where,
    timed: str = ".*",
    *,
    scale: float = 1.0,
    per: str | None = None,
) -> Values:
    """Times of what `names` matches over those of `over`, where the group has these values.

    With `per`, a cost, times are those of a unit of it.
    """

    def values(report: Report) -> Iterator[float]:
        for rows in grouped(report.rows):
            for row, other in product(rows, rows):
                named = re.fullmatch(names, row.name) and other.name == over
                if not (named and _fits(row.group, where)):
                    continue
                more = row.costs[per] / other.costs[per] if per else 1.0
                for what in other.times.keys() & row.times.keys():
                    if re.fullmatch(timed, what):
                        yield scale * row.times[what].ratio / other.times[what].ratio / more

    return values


def _costs(cost: str, names: str, where: Where, scale: float = 1.0) -> Values:
    """A cost of what `names` matches."""

    def values(report: Report) -> Iterator[float]:
        for row in report.rows:
            if re.fullmatch(names, row.name) and _fits(row.group, where) and cost in row.costs:
                yield scale * row.costs[cost]

    return values


def _growth(label: str) -> Values:
    """How much more a position costs at one size than at the size before it."""

    def values(report: Report) -> Iterator[float]:
        lines: dict[tuple, list[tuple[int, float]]] = {}
        for row in report.rows:
            varied = SWEEPS[str(row.group["sweep"])]
            line = (varied, row.name, row.group["dtype"], row.group["threads"])
            if (cost := GROWING[label](row)) and not row.baseline:
                lines.setdefault(line, []).append((int(row.group[varied]), cost))
        for points in lines.values():
            for (_, before), (_, after) in pairwise(sorted(points)):
                yield after / before

    return values


def _fits(group: Group, where: Where) -> bool:
    return all(group.get(name) in values for name, values in where.items())


def _operators(dtype: str) -> Iterator[Target]:
    """Ratios of operators, of each dtype apart."""
    of = {"dtype": (dtype,)}
    for kind, backend, time, channels, limits in BESIDE_CONVOLUTION:
        text = f"{kind}, {backend}, {dtype}, {time}, {_words(channels)} ÷ `{BASELINE}`"
        case = of | {"similarity": (kind,), "channels": channels}
        values = _times(f"ours, {backend}", BASELINE, case, re.escape(time))
        yield Target("operators", text, f"≤ {limits[dtype]}", values)
    for other, channels, limits in BESIDE_COMPILED:
        text = f"{other} ÷ diagonal, compiled, {dtype}, {BOTH}, {_words(channels)}"
        case = of | {"similarity": ("diagonal",), "channels": channels}
        values = _times(re.escape(other), COMPILED, case, re.escape(BOTH))
        if dtype in limits:
            yield Target("operators", text, f"≥ {limits[dtype]}", values)
    for kind, limit in (("diagonal", "1.5"), ("full", "2")):
        for time in (FORWARD, BOTH):
            text = f"{kind}, {dtype}, {time}, eager ÷ compiled"
            case = of | {"similarity": (kind,)}
            values = _times("ours, eager", COMPILED, case, re.escape(time))
            yield Target("operators", text, f"≤ {limit}", values)


def _widths() -> Iterator[Target]:
    """Ratios of the diagonal operator and its layer at a ResNet's widths, of each layout apart."""
    for layout, limit in (("channels last", "≤ 1.3"), ("NCHW", "≤ 1.5")):
        case = {"dtype": ("fp32",), "similarity": ("diagonal",), "layout": (layout,)}
        for time in (FORWARD, BOTH):
            text = f"diagonal, fp32, {time}, widths of a ResNet, {layout} ÷ `{BASELINE}`"
            yield Target("widths", text, limit, _times("ours", BASELINE, case, re.escape(time)))
        for time in (FORWARD, BOTH):
            text = f"the layer, likewise, {time}, {layout}, over the ratio of its multiplications"
            values = _times(LAYER, BASELINE, case, re.escape(time), per="macs")
            yield Target("widths", text, "≤ 1.2", values)


def _networks() -> Iterator[Target]:
    """Updates of whole networks, converted over plain."""
    text = f"training step of {' and '.join(networks.NETWORKS)} at batch 32, static ÷ plain"
    yield Target("networks", text, "≤ 1.05", _times("static.*", networks.PLAIN, {"batch": (32,)}))
    for layout in ("channels last", "NCHW"):
        text = f"training step of ResNet-18 at 160 pixels, {layout}, dynamic diagonal ÷ plain"
        case = {"what": (f"updates of ResNet-18, {layout}",)}
        yield Target("networks", text, "≤ 2.1", _times("dynamic-diagonal", networks.PLAIN, case))


def _words(channels: tuple[int, ...]) -> str:
    return f"{' and '.join(map(str, channels))} channels"


def _saved(kind: str) -> Values:
    """Floats that autograd keeps of a position."""
    case = {"similarity": (kind,), "channels": SMALL, "dtype": ("fp32",)}
    return _costs("saved_bytes", "ours, (compiled|eager|triton)", case, 1 / 4)


TARGETS = (
    *_operators("fp32"),
    *_operators("bf16"),
    *_widths(),
    *_networks(),
    Target(
        "operators",
        "saved for backward at C = O = 32, dynamic diagonal, fp32",
        "≤ 45 floats/position",
        _saved("diagonal"),
    ),
    Target("operators", "the same, dynamic full", "≤ 120 floats/position", _saved("full")),
    Target(
        "training",
        "training step of CNN-9, dynamic diagonal (predictor without batch norm) ÷ plain",
        "≤ 4.2",
        _times("dynamic-(diagonal|dns)", "plain", {}),
    ),
    Target(
        "training",
        "training step of CNN-9, static ÷ plain",
        "≤ 1.05",
        _times("static.*", "plain", {}),
    ),
    Target(
        "training",
        "images/s of `nsim train` in percent of a bare loop's, the same network",
        "≥ 95 %",
        _times(loops.BARE, loops.OURS, {"what": (loops.WHAT,)}, scale=100),
    ),
    Target(
        "inference", "inference of CNN-9, folded ÷ plain", "≤ 1.03", _times(".*folded", "plain", {})
    ),
    Target(
        "scaling",
        "time of a position at one size ÷ at the size before: linear, no cliff",
        "≤ 1.5",
        _growth("ns a position, forward + backward"),
    ),
    Target(
        "scaling", "peak memory of a position, likewise", "≤ 1.5", _growth("peak bytes a position")
    ),
    Target(
        "fewshot",
        "tasks/s of second-order MAML in percent of `higher`'s",
        "≥ 95 %",
        _times(few_shot.HIGHER, few_shot.OURS, {"what": (few_shot.META,)}, scale=100),
    ),
    Target(
        "fewshot",
        "tasks/s of ProtoNet on kept features",
        "≥ 500",
        _costs(few_shot.SPEED, few_shot.OURS, {"what": (few_shot.KEPT,)}),
    ),
)
"""What is aimed at. Growth by half as much again counts as a cliff."""

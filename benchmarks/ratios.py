"""What the operators are to cost beside a convolution, and beside other formulations."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.report import Report, Row

FORWARD, BOTH = "forward", "forward + backward"
DTYPES = ("fp32", "bf16")
SMALL, MIDDLE, LARGE = 32, 64, 128
"""Channels of the shapes that are measured: 32 at 32×32, 64 at 16×16, 128 at 8×8."""

Values = Callable[[Report], Iterator[float]]


class Ratio(NamedTuple):
    """A limit on one ratio of an operator's times."""

    text: str
    limit: float
    values: Values
    least: bool


def ratios() -> Iterator[Ratio]:
    """All of them, of each type apart."""
    for dtype in DTYPES:
        yield from _to_convolution(dtype)
        yield from _to_formulations(dtype)
        yield from _to_compiled(dtype)


def _to_convolution(dtype: str) -> Iterator[Ratio]:
    every, wide = (SMALL, MIDDLE, LARGE), (MIDDLE, LARGE)
    for kind, backend, time, channels, limit in (
        ("diagonal", "compiled", FORWARD, every, 2.5),
        ("diagonal", "compiled", BOTH, (SMALL,), 3.5),
        ("diagonal", "compiled", BOTH, wide, 2.5),
        ("diagonal", "eager", FORWARD, every, 4.5),
        ("diagonal", "eager", BOTH, every, 5.5),
        ("full", "compiled", BOTH, (SMALL,), 5.0 if dtype == "fp32" else 7.0),
        ("full", "compiled", BOTH, (LARGE,), 3.5),
    ):
        text = f"{kind}, {backend}, {dtype}, {time}, {_words(channels)} ÷ `nn.Conv2d`"
        yield Ratio(text, limit, _beside(kind, dtype, backend, time, channels, None), least=False)


def _to_formulations(dtype: str) -> Iterator[Ratio]:
    every = (SMALL, MIDDLE, LARGE)
    others = [("TensorFlow form", every, 2.5)]
    others += [("unfold + matmul", (SMALL, MIDDLE), 2.0), ("unfold + matmul", (LARGE,), 1.5)]
    if dtype == "fp32":
        others += [("deform_conv2d", (SMALL, MIDDLE), 12.0), ("deform_conv2d", (LARGE,), 8.0)]
    for other, channels, limit in others:
        text = f"{other} ÷ diagonal, compiled, {dtype}, {BOTH}, {_words(channels)}"
        values = _beside("diagonal", dtype, "compiled", BOTH, channels, other)
        yield Ratio(text, limit, values, least=True)


def _to_compiled(dtype: str) -> Iterator[Ratio]:
    every = (SMALL, MIDDLE, LARGE)
    for kind, limit in (("diagonal", 1.5), ("full", 2.0)):
        for time in (FORWARD, BOTH):
            text = f"{kind}, {dtype}, {time}, eager ÷ compiled"
            values = _beside(kind, dtype, "compiled", time, every, "ours, eager")
            yield Ratio(text, limit, values, least=False)


def _words(channels: Sequence[int]) -> str:
    return f"{' and '.join(map(str, channels))} channels"


def _beside(
    kind: str, dtype: str, backend: str, time: str, channels: Sequence[int], other: str | None
) -> Values:
    """Times of our backend over the baseline's, or of another formulation over ours."""

    def values(report: Report) -> Iterator[float]:
        found = {
            (row.name, _case(row)): row.times[time] for row in report.rows if time in row.times
        }
        for (name, case), timing in found.items():
            group = dict(case)
            fits = group["similarity"] == kind and group["dtype"] == dtype
            if name != f"ours, {backend}" or not fits or group["channels"] not in channels:
                continue
            if other is None:
                yield timing.ratio
            elif (other, case) in found:
                yield found[other, case].ratio / timing.ratio

    return values


def _case(row: Row) -> tuple[tuple[str, str | int], ...]:
    return tuple(sorted(row.group.items()))

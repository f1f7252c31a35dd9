"""Numbers and tables as Markdown."""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from neural_similarity.lab.train.statistics import Interval

MINUS = "−"
CLEAR = "\\*"
"""Marks a difference that is clear of zero."""


def markdown_rows(head: Sequence[str], *rows: Sequence[str]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def deviation_text(mean: float, deviation: float | None) -> str:
    """A mean and its deviation, where there is one."""
    return f"{two_decimals(mean)}" + ("" if deviation is None else f" ± {deviation:.2f}")


def interval_text(value: Interval) -> str:
    """A difference with its interval."""
    return f"{signed_number(value.mean)} [{signed_number(value.low)}, {signed_number(value.high)}]"


def p_value_text(p: float | None) -> str:
    """Three decimals of a p-value; "" where there is none."""
    return "" if p is None else "< 0.001" if p < 1e-3 else f"{p:.3f}"


def signed_number(number: float) -> str:
    """Two decimals and a sign, with a minus as wide as the plus."""
    rounded = two_decimals(number)
    return f"{rounded:+}".replace("-", MINUS) if rounded else "0.00"


def two_decimals(number: float) -> Decimal:
    """A number rounded as decimal: means of two runs end in a five that binary ones miss."""
    exact = Decimal(repr(round(number, 9)))
    return exact.quantize(Decimal("0.01"), ROUND_HALF_EVEN)

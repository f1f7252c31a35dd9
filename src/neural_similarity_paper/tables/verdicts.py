"""What comparisons say once their number and the length of their schedules count."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from neural_similarity_paper.statistics import benjamini_hochberg, holm
from neural_similarity_paper.tables.report import Difference

LEAST_BUDGET = 1 / 8
"""At a smaller share of a schedule a difference says nothing about its end."""
LEVEL = 0.05
TOO_SHORT = "unclear at this length"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference whose sign a claim predicts."""

    difference: Difference
    sign: int
    """1 or -1."""
    budget: float
    """Share of the schedule."""
    unit: Literal["image", "task"] = "image"
    """What was tested."""


@dataclass(frozen=True)
class Adjusted:
    """A p-value, and what is left of it among others."""

    p: float
    holm: float
    """Among those of the table."""
    fdr: float
    """By Benjamini and Hochberg, among all."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a comparison says."""

    status: str
    """"holds", "fails", with "by image only" or "by task only"; "unclear", also "at this length";
    "not run"."""
    seeds: Adjusted | None
    """The largest p-value of all intervals; None for fewer than three common seeds."""
    images: Adjusted | None
    """That by test image or task, for the networks that were trained."""


def judge_comparisons(
    comparisons: Sequence[Comparison], tables: Sequence[Hashable] | None = None
) -> list[Verdict]:
    """Judge comparisons that stand on one page.

    Args:
        comparisons: all of the page.
        tables: of each comparison the table, whose own Holm's adjustment counts; by default one.
    """
    families = tables or [None] * len(comparisons)
    differences = [comparison.difference for comparison in comparisons]
    by_image = [d.by_image and d.by_image.p for d in differences]
    seeds = _adjusted_values(list(map(seed_value, differences)), families)
    images = _adjusted_values(by_image, families)
    return [
        Verdict(status=_status(comparison, *adjusted), seeds=adjusted[0], images=adjusted[1])
        for comparison, *adjusted in zip(comparisons, seeds, images, strict=True)
    ]


def seed_value(difference: Difference) -> float | None:
    """The largest p-value: small only where every interval is on one side of zero."""
    if difference.by_seed is None:
        return None
    intervals = difference.intervals
    one_side = len({interval.mean > 0 for interval in intervals}) == 1
    return max(interval.p or 0 for interval in intervals) if one_side else 1.0


def _adjusted_values(
    values: Sequence[float | None], tables: Sequence[Hashable]
) -> list[Adjusted | None]:
    """P-values adjusted among those of their table, and of the page; None where there is none."""
    known = {at: p for at, p in enumerate(values) if p is not None}
    p = list(known.values())
    adjusted = map(Adjusted, p, holm(p, [tables[at] for at in known]), benjamini_hochberg(p))
    by_place = dict(zip(known, adjusted, strict=True))
    return [by_place.get(at) for at in range(len(values))]


def _status(comparison: Comparison, seeds: Adjusted | None, images: Adjusted | None) -> str:
    if images is None or comparison.difference.by_image is None:
        return "not run"
    if comparison.budget < LEAST_BUDGET:
        return TOO_SHORT
    word = "holds" if comparison.difference.by_image.mean * comparison.sign > 0 else "fails"
    if seeds is not None and seeds.holm < LEVEL:
        return word
    return f"{word} by {comparison.unit} only" if images.holm < LEVEL else "unclear"

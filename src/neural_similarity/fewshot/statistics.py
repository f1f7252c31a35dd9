"""Accuracies over tasks, their intervals, and paired differences.

Each interval covers what other tasks would change for the same trained network; other seeds are
another matter, for which one trains again.
"""

from math import sqrt
from typing import NamedTuple

from torch import Tensor

NORMAL = 1.96
"""97.5 % quantile of the normal distribution, rounded as in the literature."""


class Interval(NamedTuple):
    """A mean and what is to be added and taken away for a 95 % interval."""

    mean: float
    reach: float


def interval(values: Tensor) -> Interval:
    r"""Mean and $1.96\, s / \sqrt T$ of T values, s over T - 1.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(values) < 2:
        raise ValueError(f"`values` must be of at least 2 tasks, got {len(values)}")
    values = values.double()
    return Interval(values.mean().item(), NORMAL * values.std().item() / sqrt(len(values)))


def paired(ours: Tensor, theirs: Tensor) -> Interval:
    """The difference of two methods on the same tasks.

    Raises:
        ValueError: they are of different numbers of tasks.
    """
    if len(ours) != len(theirs):
        raise ValueError(
            f"`ours` and `theirs` must be of the same tasks, got {len(ours)} and {len(theirs)}"
        )
    return interval(ours.double() - theirs.double())

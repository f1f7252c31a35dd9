"""Intervals of means over tasks or images."""

from dataclasses import dataclass, field
from math import erfc, sqrt

from torch import Tensor

NORMAL_OF_TASKS = 1.96
"""97.5 % quantile of the normal distribution, rounded as in the few-shot literature."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float
    p: float | None = None
    """Two-sided p-value of a true mean of zero; None for an interval of something else."""
    error: float = field(default=0.0, compare=False)
    """Standard error of the mean, where the interval is Student's."""
    freedom: float = field(default=0.0, compare=False)
    """Its degrees of freedom, likewise."""

    @property
    def excludes_zero(self) -> bool:
        return not self.low <= 0 <= self.high

    @property
    def half_width(self) -> float:
        """Half-width of the interval: the number after ±."""
        return (self.high - self.low) / 2


def by_task(values: Tensor) -> Interval:
    r"""Normal interval $\bar v \pm 1.96\, s / \sqrt n$ of n values, one per task.

    It covers the choice of tasks for these trained networks, not the variation between seeds.
    """
    if len(values) < 2:
        raise ValueError(f"`values` must hold at least 2 tasks, got {len(values)}")
    values = values.double()
    error = values.std().item() / sqrt(len(values))
    return normal_interval(values.mean().item(), error, NORMAL_OF_TASKS)


def normal_interval(mean: float, error: float, quantile: float) -> Interval:
    """The interval of a mean by its standard error and a quantile of the normal distribution."""
    p = erfc(abs(mean) / error / sqrt(2)) if error else float(mean == 0)
    return Interval(mean, mean - quantile * error, mean + quantile * error, p)

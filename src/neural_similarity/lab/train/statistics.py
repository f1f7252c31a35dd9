"""Differences between networks, with confidence intervals.

Differences are paired by seed, test image or task, because both networks see the same ones: what
makes both worse cancels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev, variance

from torch import Tensor

LEAST_SEEDS = 3
"""Fewer differences give no interval: with two, it would be 12.7 standard errors to either side."""

NORMAL_OF_TASKS = 1.96
"""97.5 % quantile of the normal distribution, rounded as in the few-shot literature."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return not self.low <= 0 <= self.high

    @property
    def half_width(self) -> float:
        """Half-width of the interval: the number after ±."""
        return (self.high - self.low) / 2


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (over n - 1), None for a single value."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def pooled_deviation(groups: Iterable[Sequence[float]]) -> tuple[float, int] | None:
    r"""Pooled standard deviation within groups of seeds, $\sqrt{\sum_g (n_g - 1) s_g^2 / \nu}$.

    Returns:
        Deviation and degrees of freedom $\nu = \sum_g (n_g - 1)$; None if no group has two values.
    """
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * variance(group) for group in several)
    return sqrt(squares / freedom), freedom


def by_pooled_seeds(difference: float, deviation: float, freedom: int, *seeds: int) -> Interval:
    r"""Student's interval $d \pm t_\nu\, s \sqrt{1/n_1 + 1/n_2}$ of a difference of two means.

    Args:
        difference: d.
        deviation: s, see `pooled_deviation`.
        freedom: its degrees of freedom.
        seeds: number of seeds of each mean.
    """
    from scipy.stats import t

    scatter = deviation * sqrt(sum(1 / count for count in seeds))
    return _interval_around(difference, float(t.ppf(0.975, freedom)), scatter, 1)


def by_seed(differences: Sequence[float]) -> Interval:
    r"""Student's interval $\bar d \pm t_{n-1}\, s / \sqrt n$ of n differences, one per seed.

    It covers the variation between seeds.
    """
    if len(differences) < LEAST_SEEDS:
        raise ValueError(
            f"`differences` must hold at least {LEAST_SEEDS} seeds, got {len(differences)}"
        )
    from scipy.stats import t  # Takes half a second, which tables with fewer seeds are spared.

    return _paired_interval(differences, float(t.ppf(0.975, len(differences) - 1)))


def by_image(differences: Sequence[float]) -> Interval:
    r"""Normal interval $\bar d \pm 1.96\, s / \sqrt n$ of n differences, one per test image.

    It covers the choice of test images for these trained networks, not the variation between seeds.
    """
    if len(differences) < 2:
        raise ValueError(f"`differences` must hold at least 2 test images, got {len(differences)}")
    return _paired_interval(differences, NormalDist().inv_cdf(0.975))


def by_task(values: Tensor) -> Interval:
    r"""Normal interval $\bar v \pm 1.96\, s / \sqrt n$ of n values, one per task.

    It covers the choice of tasks for these trained networks, not the variation between seeds.
    """
    if len(values) < 2:
        raise ValueError(f"`values` must hold at least 2 tasks, got {len(values)}")
    values = values.double()
    return _interval_around(values.mean().item(), NORMAL_OF_TASKS, values.std().item(), len(values))


def _paired_interval(differences: Sequence[float], quantile: float) -> Interval:
    return _interval_around(fmean(differences), quantile, stdev(differences), len(differences))


def _interval_around(mean: float, quantile: float, deviation: float, count: int) -> Interval:
    half = quantile * deviation / sqrt(count)
    return Interval(mean, mean - half, mean + half)

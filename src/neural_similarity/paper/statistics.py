"""How far two networks differ, and how sure that is.

Differences are paired, by seed or by test image, because both networks see the same seeds and the
same images: what makes both worse drops out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

LEAST_SEEDS = 3
"""Fewer differences give no interval: two of them span 12.7 standard errors to either side."""

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
_STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004)
_STUDENT += (2.262157, 2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905)
_STUDENT += (2.109816, 2.100922, 2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899)
_STUDENT += (2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (over n - 1), which one value does not have."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def by_seed(differences: Sequence[float]) -> Interval:
    r"""Student's interval $\bar d \pm t_{n-1}\, s / \sqrt n$ of n differences, one a seed.

    It covers what another seed would change. Beyond 31 seeds it takes the t of 31, a little wide.

    Raises:
        ValueError: there are fewer than three differences.
    """
    if len(differences) < LEAST_SEEDS:
        raise ValueError(
            f"`differences` must be of at least {LEAST_SEEDS} seeds, got {len(differences)}"
        )
    return _interval(differences, _STUDENT[min(len(differences) - 1, len(_STUDENT)) - 1])


def by_image(differences: Sequence[float]) -> Interval:
    r"""Normal interval $\bar d \pm 1.96\, s / \sqrt n$ of n differences, one a test image.

    It covers what other test images would change for the same trained networks, and says nothing
    about other seeds.

    Raises:
        ValueError: there are fewer than two images.
    """
    if len(differences) < 2:
        raise ValueError(f"`differences` must be of at least 2 test images, got {len(differences)}")
    return _interval(differences, NormalDist().inv_cdf(0.975))


def _interval(differences: Sequence[float], quantile: float) -> Interval:
    mean = fmean(differences)
    reach = quantile * stdev(differences) / sqrt(len(differences))
    return Interval(mean, mean - reach, mean + reach)

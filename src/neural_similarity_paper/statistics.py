"""Differences between networks, with confidence intervals.

Differences are paired by seed, test image or task, because both networks see the same ones: what
makes both worse cancels.
"""

from collections.abc import Hashable, Iterable, Sequence
from math import sqrt
from statistics import NormalDist, fmean, stdev, variance

from torch import Tensor

from neural_similarity.lab.train.statistics import Interval, normal_interval

LEAST_SEEDS = 3
"""Fewer differences give no interval: with two, it would be 12.7 standard errors to either side."""


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
    return _student_interval(
        difference, deviation * sqrt(sum(1 / count for count in seeds)), freedom
    )


def by_seed(differences: Sequence[float]) -> Interval:
    r"""Student's interval $\bar d \pm t_{n-1}\, s / \sqrt n$ of n differences, one per seed.

    It covers the variation between seeds.
    """
    if len(differences) < LEAST_SEEDS:
        raise ValueError(
            f"`differences` must hold at least {LEAST_SEEDS} seeds, got {len(differences)}"
        )
    count = len(differences)
    return _student_interval(fmean(differences), stdev(differences) / sqrt(count), count - 1)


def by_image(differences: Sequence[float]) -> Interval:
    r"""Normal interval $\bar d \pm 1.96\, s / \sqrt n$ of n differences, one per test image.

    It covers the choice of test images for these trained networks, not the variation between seeds.
    """
    if len(differences) < 2:
        raise ValueError(f"`differences` must hold at least 2 test images, got {len(differences)}")
    error = stdev(differences) / sqrt(len(differences))
    return normal_interval(fmean(differences), error, NormalDist().inv_cdf(0.975))


def by_seed_and_image(differences: Tensor) -> Interval:
    r"""Interval of a mean over seeds and images, or tasks, that are both drawn at random.

    A mixed model of crossed effects without replication, as restricted maximum likelihood fits it:
    with the mean squares of seeds, images and the rest, the variance of the mean of n seeds and m
    images is $(s + i - r) / nm$, where an effect below the rest is none. Student's quantile has
    Satterthwaite's degrees of freedom.

    Args:
        differences: (seeds, images).
    """
    values = differences.double()
    return _crossed_interval([values], values.mean(0), LEAST_SEEDS)


def by_arm_and_image(ours: Tensor, theirs: Tensor) -> Interval:
    r"""Interval of the difference of the means of two arms, whose seeds are drawn independently.

    Images are drawn at random and shared. With the variance between seeds, $s^2 (1/n_1 + 1/n_2)$,
    pooled over both arms, that of the m images' differences, $i/m$, and the rest, the variance is
    their sum less the rest, as in `by_seed_and_image`.

    Args:
        ours: (seeds, images).
        theirs: (seeds, images), the same images.
    """
    arms = [ours.double(), theirs.double()]
    return _crossed_interval(arms, arms[0].mean(0) - arms[1].mean(0))


def equivalence_p(interval: Interval, margin: float) -> float:
    """The p-value of two one-sided tests that the true mean lies within ± `margin`."""
    from scipy.stats import t

    if not interval.error:
        return float(abs(interval.mean) >= margin)
    return float(t.sf((margin - abs(interval.mean)) / interval.error, interval.freedom))


def _crossed_interval(arms: Sequence[Tensor], by_image: Tensor, least: int = 2) -> Interval:
    """Student's interval of the mean over images, from arms of (seeds, images) that make it."""
    images, freedom = len(by_image), sum(len(arm) - 1 for arm in arms)
    if (have := min(map(len, arms))) < least or images < 2:
        raise ValueError(
            f"there must be at least {least} seeds and 2 images, got {have} and {images}"
        )
    scale = sum(1 / len(arm) for arm in arms) / freedom
    between = sum((arm.mean(1) - arm.mean()).square().sum().item() for arm in arms)
    residuals = (arm - arm.mean(1, keepdim=True) - arm.mean(0) + arm.mean() for arm in arms)
    rest = sum(part.square().sum().item() for part in residuals)
    mean, of_seeds, of_images, unshared = (
        by_image.mean().item(),
        between * scale,
        by_image.var().item() / images,
        rest * scale / (images - 1) / images,
    )
    freedoms = freedom, images - 1, freedom * (images - 1)
    if of_images <= unshared:
        return _student_interval(mean, sqrt(of_seeds), freedoms[0])
    if of_seeds <= unshared:
        return _student_interval(mean, sqrt(of_images), freedoms[1])
    total, parts = of_seeds + of_images - unshared, (of_seeds, of_images, unshared)
    freedom = total**2 / sum(part**2 / count for part, count in zip(parts, freedoms, strict=True))
    return _student_interval(mean, sqrt(total), freedom)


def holm(values: Sequence[float], families: Iterable[Hashable] | None = None) -> list[float]:
    """P-values adjusted by Holm: any true zero is below a level with that chance at most.

    Args:
        values: p-values.
        families: of each value the family that it is adjusted in; by default all are of one.
    """
    members: dict[Hashable, list[int]] = {}
    for at, family in enumerate([None] * len(values) if families is None else families):
        members.setdefault(family, []).append(at)
    adjusted = [0.0] * len(values)
    for places in members.values():
        least = 0.0
        for rank, at in enumerate(sorted(places, key=values.__getitem__)):
            least = adjusted[at] = max(least, min(1.0, (len(places) - rank) * values[at]))
    return adjusted


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """P-values adjusted so that true zeros are at most a level's share of those below it."""
    from scipy.stats import false_discovery_control

    return false_discovery_control(values).tolist() if values else []


def _student_interval(mean: float, error: float, freedom: float) -> Interval:
    from scipy.stats import t  # Takes half a second, which tables with fewer seeds are spared.

    reach = float(t.ppf(0.975, freedom)) * error
    p = 2 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Interval(mean, mean - reach, mean + reach, p, error, freedom)

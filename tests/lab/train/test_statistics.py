"""Intervals against scipy and against arithmetic by hand."""

from math import sqrt

import numpy as np
import pytest
import torch
from scipy import stats

from neural_similarity.lab.train.statistics import (
    Interval,
    by_image,
    by_seed,
    by_task,
    mean_and_deviation,
)


def test_three_seeds_by_hand():
    """Differences -1, 0, -2: mean -1, s = 1; t of 2 degrees is 0.95 / √(2 · 0.975 · 0.025)."""
    quantile = 0.95 / sqrt(2 * 0.975 * 0.025)
    interval = by_seed([-1.0, 0.0, -2.0])
    assert interval.mean == -1
    assert interval.low == pytest.approx(-1 - quantile / sqrt(3), rel=1e-12)
    assert interval.high == pytest.approx(-1 + quantile / sqrt(3), rel=1e-12)


@pytest.mark.parametrize("n", [*range(3, 32), 60])
def test_by_seed_is_scipys_paired_t_interval(n):
    ours, baseline = np.random.default_rng(n).normal(size=(2, n))
    expected = stats.ttest_rel(ours, baseline).confidence_interval(0.95)
    interval = by_seed((ours - baseline).tolist())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_four_images_by_hand():
    """Differences 1, 0, 0, -1 have mean 0 and s² = 2/3; the normal quantile is 1.959964."""
    interval = by_image([1.0, 0.0, 0.0, -1.0])
    assert interval.mean == 0
    assert interval.high == pytest.approx(1.9599639845 * sqrt(2 / 3) / 2, rel=1e-9)
    assert interval.low == -interval.high


def test_by_image_is_scipys_normal_interval():
    differences = np.random.default_rng(1).choice([-1, 0, 1], size=1001, p=[0.05, 0.9, 0.05])
    error = stats.sem(differences)
    expected = stats.norm.interval(0.95, differences.mean(), error)
    interval = by_image(differences.tolist())
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-9)


def test_five_tasks_by_hand():
    values = [0.5, 0.75, 1.0, 0.25, 0.5]
    mean = sum(values) / 5
    deviation = (sum((v - mean) ** 2 for v in values) / 4) ** 0.5
    found = by_task(torch.tensor(values))
    assert found.mean == pytest.approx(mean, abs=1e-12)
    assert found.reach == pytest.approx(1.96 * deviation / 5**0.5, abs=1e-12)
    with pytest.raises(ValueError, match="at least 2 tasks, got 1"):
        by_task(torch.ones(1))


def test_differences_of_three_tasks_by_hand():
    ours, theirs = torch.tensor([0.5, 0.7, 0.9]), torch.tensor([0.4, 0.7, 0.5])
    differences = [0.1, 0.0, 0.4]
    mean = sum(differences) / 3
    deviation = (sum((d - mean) ** 2 for d in differences) / 2) ** 0.5
    found = by_task(ours - theirs)
    reach = 1.96 * deviation / 3**0.5
    assert (found.mean, found.reach) == pytest.approx((mean, reach), abs=1e-6)
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach), abs=1e-6)
    assert by_task(ours - ours) == Interval(0, 0, 0)


def test_paired_intervals_cover_the_truth_in_95_of_100_samples():
    generator = np.random.default_rng(2)
    hits = [
        interval.low <= 0.3 <= interval.high
        for interval in map(by_seed, generator.normal(0.3, 2, size=(4_000, 3)).tolist())
    ]
    assert np.mean(hits) == pytest.approx(0.95, abs=4 * sqrt(0.95 * 0.05 / 4_000))


def test_mean_and_deviation():
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3, pytest.approx(sqrt(7)))
    assert mean_and_deviation([2.5]) == (2.5, None)


def test_too_few_differences_are_refused():
    with pytest.raises(ValueError, match="`differences` must be of at least 3 seeds, got 2"):
        by_seed([1.0, 2.0])
    with pytest.raises(ValueError, match="`differences` must be of at least 2 test images, got 1"):
        by_image([1.0])

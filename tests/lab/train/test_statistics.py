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


@pytest.mark.parametrize("n", [*range(3, 32), 60])
def test_by_seed_is_scipys_paired_t_interval(n):
    ours, baseline = np.random.default_rng(n).normal(size=(2, n))
    expected = stats.ttest_rel(ours, baseline).confidence_interval(0.95)
    interval = by_seed((ours - baseline).tolist())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


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
    reach = 1.96 * deviation / 5**0.5
    found = by_task(torch.tensor(values))
    assert (found.mean, found.half_width) == pytest.approx((mean, reach), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach), abs=1e-12)
    assert by_task(torch.zeros(3)) == Interval(0, 0, 0)
    with pytest.raises(ValueError, match="at least 2 tasks, got 1"):
        by_task(torch.ones(1))


def test_mean_and_deviation():
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3, pytest.approx(sqrt(7)))
    assert mean_and_deviation([2.5]) == (2.5, None)


def test_too_few_differences_are_refused():
    with pytest.raises(ValueError, match="`differences` must hold at least 3 seeds, got 2"):
        by_seed([1.0, 2.0])
    with pytest.raises(ValueError, match="`differences` must hold at least 2 test images, got 1"):
        by_image([1.0])

from math import sqrt

import numpy as np
import pytest
import torch
from scipy import stats

from neural_similarity.lab.train.schedule import learning_rate, scaled_steps
from neural_similarity.lab.train.statistics import (
    Interval,
    by_image,
    by_seed,
    by_task,
    mean_and_deviation,
)

PAPER = (34_000, 54_000)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.1), (33_999, 0.1), (34_000, 0.01), (53_999, 0.01), (54_000, 0.001), (63_999, 0.001)],
)
def test_rate_drops_at_the_papers_steps(step, rate):
    assert learning_rate(step, 0.1, PAPER, 0.1) == pytest.approx(rate)


def test_rate_is_constant_without_drops():
    assert {learning_rate(step, 0.3, (), 0.1) for step in range(100)} == {0.3}


@pytest.mark.parametrize(
    ("budget", "steps", "drops"),
    [
        (1, 64_000, PAPER),
        (0.125, 8_000, (4_250, 6_750)),
        (0.02, 1_280, (680, 1_080)),
        (2, 128_000, (68_000, 108_000)),
    ],
)
def test_budget_scales_steps_and_drops_together(budget, steps, drops):
    assert scaled_steps(64_000, PAPER, budget) == (steps, drops)


def test_budget_rounds_halves_up_and_leaves_out_drops_that_meet():
    """The end, the start, or each other."""
    assert scaled_steps(5, (1, 3), 0.5) == (3, (1, 2))
    assert scaled_steps(64_000, PAPER, 1e-5) == (1, ())
    assert scaled_steps(10, (9,), 0.01) == (1, ())
    assert scaled_steps(10, (1, 9), 0.2) == (2, ())
    assert scaled_steps(10, (4, 5, 6), 0.25) == (3, (1, 2))
    assert scaled_steps(10, (9,), 0.1) == (1, ())


@pytest.mark.parametrize(
    ("budget", "limit"),
    [*((wrong, "above 0") for wrong in (0, -1, float("nan"))), (float("inf"), "at most 1,000,000")],
)
def test_budget_is_positive_and_finite(budget, limit):
    with pytest.raises(ValueError, match=f"`budget` must be {limit}, got {budget}"):
        scaled_steps(10, (), budget)


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

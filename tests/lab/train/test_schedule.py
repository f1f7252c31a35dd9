from functools import partial
from math import sqrt

import numpy as np
import pytest
import torch
from refusals import refusals
from scipy import stats

from neural_similarity.lab.train.schedule import one_cycle, scaled_steps
from neural_similarity.lab.train.statistics import Interval, by_task
from neural_similarity_paper.statistics import (
    benjamini_hochberg,
    by_arm_and_image,
    by_image,
    by_pooled_seeds,
    by_seed,
    by_seed_and_image,
    equivalence_p,
    holm,
    mean_and_deviation,
)

PAPER = (34_000, 54_000)


@pytest.mark.parametrize("steps", [1, 2, 5, 7, 100, 6240])
def test_one_cycle_rises_for_a_fifth_and_falls_to_the_last_step(steps):
    rates = [one_cycle(step, 0.2, steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert top == max(1, steps // 5) - 1
    assert rates == sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True)
    assert max(rates) == 0.2
    assert min(rates) > 0
    if steps > 10:  # Equal steps up, equal steps down, one more of them to zero.
        assert np.ptp(np.diff([0.0, *rates[: top + 1]])) < 1e-12
        assert np.ptp(np.diff([*rates[top + 1 :], 0.0])) < 1e-12


@pytest.mark.parametrize(
    ("steps", "drops", "budget", "scaled"),
    [
        (64_000, PAPER, 1, (64_000, PAPER)),
        (64_000, PAPER, 0.125, (8_000, (4_250, 6_750))),
        (64_000, PAPER, 0.02, (1_280, (680, 1_080))),
        (64_000, PAPER, 2, (128_000, (68_000, 108_000))),
        (64_000, PAPER, 1e-5, (1, ())),
        (5, (1, 3), 0.5, (3, (1, 2))),
        (10, (9,), 0.01, (1, ())),
        (10, (9,), 0.1, (1, ())),
        (10, (1, 9), 0.2, (2, ())),
        (10, (4, 5, 6), 0.25, (3, (1, 2))),
    ],
)
def test_budget_scales_steps_and_drops_together(steps, drops, budget, scaled):
    """Halves are rounded up; drops that meet the end, the start or each other are left out."""
    assert scaled_steps(steps, drops, budget) == scaled


@pytest.mark.parametrize("n", [*range(3, 32), 60])
def test_by_seed_is_scipys_paired_t_interval(n):
    ours, baseline = np.random.default_rng(n).normal(size=(2, n))
    expected = stats.ttest_rel(ours, baseline).confidence_interval(0.95)
    interval = by_seed((ours - baseline).tolist())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert interval.p == pytest.approx(stats.ttest_rel(ours, baseline).pvalue, rel=1e-9)


def test_by_image_is_scipys_normal_interval():
    differences = np.random.default_rng(1).choice([-1, 0, 1], size=1001, p=[0.05, 0.9, 0.05])
    error = stats.sem(differences)
    expected = stats.norm.interval(0.95, differences.mean(), error)
    interval = by_image(differences.tolist())
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-9)
    assert interval.p == pytest.approx(2 * stats.norm.sf(abs(differences.mean()) / error), rel=1e-9)


def test_a_p_value_is_below_5_percent_where_the_interval_excludes_zero():
    """Of every kind of interval; the rounded quantile of tasks leaves 4e-5."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        differences = torch.randn(3, 12, generator=generator) + 0.5
        seeds = differences.mean(1).tolist()
        for interval in (
            by_seed(seeds),
            by_image(differences.mean(0).tolist()),
            by_task(differences.mean(0)),
            by_seed_and_image(differences),
            by_pooled_seeds(seeds[0], 0.3, 7, 3, 2),
        ):
            assert (interval.p < 0.05) == interval.excludes_zero or abs(interval.p - 0.05) < 1e-4


CROSSED = torch.tensor(
    [
        [0.8, -0.5, -0.6, -0.6, 0.1, 1.6, 0.3, -1.0, -0.1, 1.7, -0.8, -1.0],
        [-0.1, -0.1, -1.3, -0.5, 0.4, 0.7, -0.6, -1.1, -1.4, -0.1, 0.2, -1.9],
        [2.0, 1.0, -1.3, 0.2, 0.2, 1.5, 0.7, -1.7, -0.3, 1.3, 1.3, -1.4],
        [2.0, 0.1, 0.2, -0.2, 2.3, 2.2, 2.7, 0.5, 0.8, 2.4, 0.5, -0.3],
    ]
)


def test_the_error_by_seed_and_image_is_that_of_statsmodels():
    """`MixedLM`, crossed variance components by REML, statsmodels 0.15.0: 0.225 ± 0.41093807."""
    interval, error = by_seed_and_image(CROSSED), 0.41093807
    assert interval.mean == pytest.approx(0.225, abs=1e-7)
    assert 1 < interval.freedom < 1000
    assert interval.half_width == pytest.approx(stats.t.ppf(0.975, interval.freedom) * error)
    assert interval.p == pytest.approx(2 * stats.t.sf(0.225 / error, interval.freedom))


def test_an_effect_below_the_rest_is_none():
    """Equal seeds leave the interval by image, equal images that by seed."""
    by_images = by_seed_and_image(CROSSED[:1].expand(4, -1) + 1e-3 * torch.randn(4, 12))
    expected = stats.t.interval(0.95, 11, CROSSED[0].mean().item(), stats.sem(CROSSED[0].numpy()))
    assert (by_images.low, by_images.high) == pytest.approx(expected, abs=2e-3)
    by_seeds = by_seed_and_image(CROSSED[:, :1].expand(-1, 12) + 1e-3 * torch.randn(4, 12))
    expected = by_seed(CROSSED[:, 0].tolist())
    assert (by_seeds.low, by_seeds.high) == pytest.approx((expected.low, expected.high), abs=1e-2)
    with pytest.raises(ValueError, match="at least 3 seeds and 2 images, got 2 and 12"):
        by_seed_and_image(CROSSED[:2])


def test_arms_whose_images_do_not_differ_are_compared_by_students_t():
    """scipy's test of two independent samples of pooled variance, and its equivalence."""
    seeds = np.random.default_rng(3).normal(size=17)
    ours, theirs = (torch.tensor(part)[:, None].expand(-1, 12) for part in np.split(seeds, [8]))
    interval = by_arm_and_image(ours + 1e-6 * torch.randn(8, 12), theirs)
    test = stats.ttest_ind(seeds[:8], seeds[8:])
    expected = test.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-5)
    assert interval.p == pytest.approx(test.pvalue, abs=1e-5)
    sides = (
        stats.ttest_ind(seeds[:8] - shift, seeds[8:], alternative=side).pvalue
        for shift, side in ((-1.5, "greater"), (1.5, "less"))
    )
    assert equivalence_p(interval, 1.5) == pytest.approx(max(sides), abs=1e-5)
    with pytest.raises(ValueError, match="at least 2 seeds and 2 images, got 1 and 12"):
        by_arm_and_image(ours, theirs[:1])


@pytest.mark.parametrize("interval", [by_seed_and_image, by_arm_and_image])
def test_an_interval_covers_zero_as_often_as_it_says(interval):
    """Simulated: few seeds and 40 images, effects of both; 95 % of 2,000 intervals."""
    generator = torch.Generator().manual_seed(1)

    def draw(scale, *size):
        return scale * torch.randn(size, generator=generator)

    def differences(seeds):
        """Effects of images, of seeds, and of both."""
        return draw(1, 1, 40) + draw(0.3, seeds, 1) + draw(2, seeds, 40)

    covered = 0
    for _ in range(2000):
        shared, one = draw(1, 1, 40), interval is by_seed_and_image
        arms = [differences(3)] if one else [shared + differences(seeds) for seeds in (5, 3)]
        covered += not interval(*arms).excludes_zero
    assert 0.93 < covered / 2000 < 0.99


P_VALUES = [0.012, 0.0004, 0.30, 0.012, 0.049, 0.75, 0.02]


def test_adjusted_p_values_are_those_of_statsmodels():
    """`multipletests` of statsmodels 0.15.0."""
    expected = [0.072, 0.0028, 0.6, 0.072, 0.147, 0.75, 0.08]
    assert holm(P_VALUES) == pytest.approx(expected, rel=1e-12)
    expected = [0.028, 0.0028, 0.35, 0.028, 0.0686, 0.75, 0.035]
    assert benjamini_hochberg(P_VALUES) == pytest.approx(expected, rel=1e-12)
    assert (holm([]), benjamini_hochberg([])) == ([], [])


def test_five_tasks_by_hand():
    values = [0.5, 0.75, 1.0, 0.25, 0.5]
    mean = sum(values) / 5
    deviation = (sum((v - mean) ** 2 for v in values) / 4) ** 0.5
    reach = 1.96 * deviation / 5**0.5
    found = by_task(torch.tensor(values))
    assert (found.mean, found.half_width) == pytest.approx((mean, reach), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach), abs=1e-12)
    assert by_task(torch.zeros(3)) == Interval(0, 0, 0, 1)
    with pytest.raises(ValueError, match="at least 2 tasks, got 1"):
        by_task(torch.ones(1))


def test_mean_and_deviation():
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3, pytest.approx(sqrt(7)))
    assert mean_and_deviation([2.5]) == (2.5, None)


test_errors = refusals(
    (lambda: by_seed([1.0, 2.0]), "`differences` must hold at least 3 seeds, got 2"),
    (lambda: by_image([1.0]), "`differences` must hold at least 2 test images, got 1"),
    *(
        (partial(scaled_steps, 10, (), budget), f"`budget` must be {limit}, got {budget}")
        for budget, limit in (
            (0, "above 0"),
            (-1, "above 0"),
            (float("nan"), "above 0"),
            (float("inf"), "at most 1,000,000"),
        )
    ),
)

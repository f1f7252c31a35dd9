import pytest

from neural_similarity.lab.train.schedule import learning_rate, scaled_steps

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

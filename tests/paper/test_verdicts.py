"""Verdicts: which interval counts, what adjusting does, and what a short schedule may say."""

import pytest
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.tables.kinds import has_failed
from neural_similarity_paper.tables.report import Difference
from neural_similarity_paper.tables.verdicts import Comparison, judge_comparisons


def interval(p, mean=-1.0):
    return Interval(mean, mean - 1, mean + 1, p)


def comparison(
    *, seeds=None, images=0.001, both=0.001, pooled=None, mean=-1.0, other=None, **changes
):
    """P-values of intervals of a mean; the pooled one may have an `other`."""
    found = Difference(
        common=(1, 2, 3),
        by_seed=None if seeds is None else interval(seeds, mean),
        by_image=None if images is None else interval(images, mean),
        by_both=None if seeds is None else interval(both, mean),
        by_pooled_seeds=None if pooled is None else interval(pooled, other or mean),
    )
    return Comparison(**{"difference": found, "sign": -1, "budget": 1.0} | changes)


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (comparison(seeds=0.01), "holds"),
        (comparison(seeds=0.01, mean=1.0), "fails"),
        (comparison(seeds=0.01, sign=1), "fails"),
        (comparison(seeds=0.2), "holds by image only"),
        (comparison(seeds=0.01, both=0.2), "holds by image only"),
        (comparison(seeds=0.01, pooled=0.2), "holds by image only"),
        (comparison(seeds=0.01, pooled=0.01), "holds"),
        (comparison(seeds=0.01, pooled=0.01, other=0.5), "holds by image only"),
        (comparison(), "holds by image only"),
        (comparison(unit="task"), "holds by task only"),
        (comparison(seeds=0.01, images=0.2), "unclear"),
        (comparison(images=0.2), "unclear"),
        (comparison(images=None), "not run"),
        (comparison(seeds=0.01, budget=0.125), "holds"),
        (comparison(seeds=0.01, budget=0.0625), "unclear at this length"),
        (comparison(images=None, budget=0.0625), "not run"),
    ],
)
def test_every_interval_counts_and_the_length(one, status):
    assert [verdict.status for verdict in judge_comparisons([one])] == [status]


def test_tables_are_adjusted_by_themselves_and_the_page_for_false_discoveries():
    """Two of 0.02 in one table, one in another: Holm 0.04, 0.04 and 0.03."""
    page = [comparison(seeds=p) for p in (0.02, 0.02, 0.03)]
    verdicts = judge_comparisons(page, ["a", "a", "b"])
    assert [one.seeds.holm for one in verdicts] == pytest.approx([0.04, 0.04, 0.03])
    assert [one.seeds.fdr for one in verdicts] == pytest.approx([0.03] * 3)
    assert [one.status for one in verdicts] == ["holds"] * 3
    together = judge_comparisons(page)
    assert [one.seeds.holm for one in together] == pytest.approx([0.06] * 3)
    assert [one.status for one in together] == ["holds by image only"] * 3


@pytest.mark.parametrize(
    ("losses", "accuracy", "failed"),
    [
        ([2.4, 0.5, 0.4], 0.8, False),
        ([2.4, 0.4, 0.5], 0.25, False),  # Weak, but the loss did not rise by half.
        ([2.4, 0.4, 0.61], 0.25, True),
        ([2.4, 0.4, float("nan")], 0.25, True),
        ([2.4, 0.4, 0.61], 0.3, False),
        ([2.4, 2.3, 2.3], 0.19, True),
        ([2.4, 2.3, 2.3], 0.2, False),
        ([8.3], 0.1, False),  # Nothing was trained.
        ([], 0.1, False),
    ],
)
def test_which_trainings_failed(losses, accuracy, failed):
    assert has_failed(losses, accuracy, 10) == failed

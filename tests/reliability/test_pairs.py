"""Two processes that do the same at once."""

import os

import pytest
from reliability.children import ended, started
from reliability.counts import record
from reliability.test_writes import Trial
from reliability.test_writes import tiny_world as tiny_world
from reliability.works import outcome
from tiny_results import tiny_table as tiny_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tiny_table", "tiny_world")]
PAIRS = 20


def pair_of(trial):
    """The exit codes of two processes that begin the work of a trial at once."""

    def work():
        os.chdir(trial.here)
        raise SystemExit(trial.work())

    return sorted(ended(number) for number in [started(work), started(work)])


@pytest.mark.parametrize(
    ("name", "codes"),
    [("classification", [0, 1]), ("evaluation on tasks", [0, 0]), ("save_adapter", [0, 0])],
)
def test_one_wins_or_both_succeed(tmp_path, name, codes):
    trial, wrong = Trial(name, tmp_path), 0
    trial.warm_up()
    trial.run()
    expected = outcome(trial.here)
    for _ in range(PAIRS):
        trial.begin()
        wrong += pair_of(trial) != codes or outcome(trial.here) != expected
    record(name, **{"pairs": PAIRS, "pairs, errors": wrong})
    assert not wrong

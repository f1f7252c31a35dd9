"""Two processes that do the same at once."""

import shutil

import pytest
from reliability.children import ended, started
from reliability.counts import record
from reliability.test_kills import KILLS, Evaluation, Training, new
from reliability.test_kills import _tiny as _tiny

from neural_similarity.lab import session


@pytest.mark.slow
def test_of_two_trainings_into_one_folder_one_wins(tmp_path):
    pairs, wrong = KILLS // 2, 0
    whole = Training(new(tmp_path / "whole"))
    whole.work()
    expected = whole.outcome()
    for _ in range(pairs):
        both = Training(new(tmp_path / "both"))

        def begin(folder=both.folder):
            session.train(Training.recipe, out=folder / "run", device="cpu")

        codes = [ended(number) for number in [started(begin), started(begin)]]
        wrong += sorted(codes) != [0, 1] or both.outcome() != expected
        shutil.rmtree(both.folder)
    record("pairs of trainings into one folder", tried=pairs, errors=wrong)
    assert not wrong


@pytest.mark.slow
def test_two_evaluations_of_one_run_both_succeed(tmp_path):
    pairs, wrong = max(2, KILLS // 10), 0
    both = Evaluation(new(tmp_path / "both"))
    for _ in range(pairs):
        shutil.rmtree(both.run.path / "evaluations", ignore_errors=True)
        wrong += [ended(number) for number in [started(both.work), started(both.work)]] != [0, 0]
    record("pairs of evaluations of one run", tried=pairs, errors=wrong)
    assert not wrong

"""A training that is killed, the kill itself, and what a run comes to in the end."""

import json

import pytest
import torch
from tiny_results import timeless

from neural_similarity.lab.session import load
from neural_similarity.lab.train.journal import Journal, read_lines


class Killed(BaseException):
    """Stands for a kill: nothing handles it."""


def killed_after(step, start):
    """Call `start` and kill it when `step` is done, before anything is saved for that step."""

    def stepped(_journal, done):
        if done == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "show_step", stepped)
        with pytest.raises(Killed):
            start()


def outcome(run, *checkpoints):
    """Weights of checkpoints, the lines of metrics without times, the answers on the test set."""
    lines = timeless([*read_lines(run.metrics)])
    weights = [load(run, which).state_dict() for which in checkpoints]
    return weights, lines, json.loads(run.summary.read_text()).get("test_correct")


def assert_same(found, expected):
    """Two outcomes are equal to the last bit."""
    assert found[1:] == expected[1:]
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

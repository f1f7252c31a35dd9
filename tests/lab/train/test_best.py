"""The best checkpoint is that of the highest validation accuracy, the first of equal ones."""

import json
from dataclasses import replace

import pytest
import torch
from kills import killed_after
from tiny_images import TINY
from tiny_images import tiny as tiny

from neural_similarity.lab import session
from neural_similarity.lab.tasks.classification import ClassificationTask
from neural_similarity.lab.train.checkpoint import list_checkpoints

pytestmark = pytest.mark.usefixtures("tiny")
STEPS = {"steps": 5, "drops": (), "evaluate_every": 1, "checkpoint_every": 1}
SCRIPTS = {
    "in the middle": [0.3, 0.9, 0.5, 0.9, 0.1],
    "first": [0.5, 0.4, 0.3, 0.2, 0.1],
    "last": [0.0, 0.1, 0.2, 0.3, 0.4],
    "all equal": [0.25] * 5,
    "nothing is right": [0.0] * 5,
}


@pytest.fixture
def script(monkeypatch):
    """Validation comes to given accuracies, by step; the weights that were judged, by step."""

    def prepare(task, accuracies):
        judged = {}

        def judge(model):
            step = judge.step = judge.step + 1
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            judged[step] = state
            # The loss says the opposite, as it may.
            return {"validation_accuracy": accuracies[step - 1], "validation_loss": 1.0 / step}

        judge.step = 0
        monkeypatch.setattr(task, "validation", lambda *_: judge)
        return judge, judged

    return prepare


def assert_is(state, other):
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in other)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_best_checkpoint_is_that_of_the_highest_accuracy(tmp_path, script, name):
    accuracies = SCRIPTS[name]
    first_best = 1 + accuracies.index(max(accuracies))
    _, judged = script(ClassificationTask, accuracies)
    run = session.train(replace(TINY, validation=16, **STEPS), out=tmp_path / "run", device="cpu")
    assert [path.name for path in list_checkpoints(run.best)] == [f"step-{first_best:08d}"]
    assert_is(session.load(run, "best").state_dict(), judged[first_best])
    assert_is(session.load(run).state_dict(), judged[5])
    summary = json.loads(run.summary.read_text())
    assert summary["best_checkpoint"]["validation_accuracy"] == max(accuracies)


def test_a_resumed_run_knows_how_good_the_best_was(tmp_path, script):
    judge, judged = script(ClassificationTask, SCRIPTS["in the middle"])
    recipe = replace(TINY, validation=16, **STEPS)
    killed_after(4, lambda: session.train(recipe, out=tmp_path / "run", device="cpu"))
    judge.step = 3  # The checkpoint of step 3 is the last.
    run = session.resume(tmp_path / "run", device="cpu")
    assert [path.name for path in list_checkpoints(run.best)] == ["step-00000002"]
    assert_is(session.load(run, "best").state_dict(), judged[2])

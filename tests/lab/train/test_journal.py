"""What a run writes down, when, and what stays of it."""

import json
from types import SimpleNamespace

import pytest
from tiny_images import tiny as tiny
from tiny_images import train_tiny

from neural_similarity.lab.train import journal, loop
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity.lab.train.journal import Journal, read_lines

pytestmark = pytest.mark.usefixtures("tiny")


def test_seconds_are_those_of_updates_alone(tmp_path, monkeypatch):
    clock = [0.0]

    def takes(seconds, then):
        def passed(*args):
            clock[0] += seconds
            return then(*args)

        return passed

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(Journal, "show_step", takes(1, lambda *_: None))
    monkeypatch.setattr(Journal, "save_state", takes(100, Journal.save_state))
    run = train_tiny(tmp_path, checkpoint_every=2)
    assert [line["seconds"] for line in read_lines(run.metrics)] == [2, 4, 6]
    assert [line["images_per_second"] for line in read_lines(run.metrics)] == [8, 8, 8]
    assert json.loads(run.summary.read_text())["images_per_second"] == 8


def test_seconds_between_checkpoints_count_from_the_last_one(tmp_path, monkeypatch):
    clock = [0.0]

    def stepped(*_):
        clock[0] += 40

    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Journal, "show_step", stepped)
    run = train_tiny(tmp_path, checkpoint_seconds=100.0)
    names = [path.name for path in list_checkpoints(run.checkpoints)]
    assert names == ["step-00000003", "step-00000006"]


@pytest.mark.parametrize("what", ["metrics", "checkpoint", "nothing"])
def test_a_run_that_fails_keeps_what_it_wrote(tmp_path, monkeypatch, what):
    def fail(_, step):
        if step == 3:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(Journal, "show_step", fail)
    every = {"metrics": {"log_every": 2}, "checkpoint": {"checkpoint_every": 2}}.get(what, {})
    with pytest.raises(RuntimeError, match="out of memory"):
        train_tiny(tmp_path, **{"log_every": 50} | every)
    assert (tmp_path / "run").exists() == (what != "nothing")

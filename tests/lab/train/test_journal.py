"""What a run writes down, when, and what stays of it."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from tiny_images import train_tiny

from neural_similarity.lab.train import journal, loop, progress
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity.lab.train.journal import Journal, read_lines
from neural_similarity.lab.train.progress import Bar, Lines, format_clock, show_progress

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


RECORD = {"loss": 0.5, "accuracy": 0.875, "images_per_second": 1234.5}


def shown_lines(steps, first, tick=lambda: None):
    """What is shown of a run that goes on after the step `first`."""
    stream = io.StringIO()
    lines = Lines(steps, first, stream)
    for step in range(first + 1, steps + 1):
        tick()
        lines.show_step(step)
        lines.show_metrics(RECORD | {"step": step})
    return stream.getvalue().splitlines()


def test_lines_are_about_ten_whatever_the_number_of_metrics():
    told = shown_lines(1_000, 0)
    assert len(told) == 10
    assert told[0].startswith("step 100/1,000  loss 0.500  accuracy 87.5 %  1,234 images/s  ")
    steps = [line.split()[1] for line in shown_lines(100, 55)]
    assert steps == [f"{step}/100" for step in (60, 70, 80, 90, 100)]


def test_the_time_left_is_that_of_the_other_steps_at_the_same_pace(monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told = shown_lines(100, 50, lambda: now.append(now.pop() + 6))
    left = [line.rsplit("  ", 1)[1] for line in told]
    assert left == [f"{minutes}:00 left" for minutes in (4, 3, 2, 1, 0)]


def test_bar_shows_position_and_metrics(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show_progress("title", 10, 2) as bar:
        assert isinstance(bar, Bar)
        bar.show_step(7)
        bar.show_metrics(RECORD | {"step": 7})
        bar.show_metrics({"step": 7, "validation_accuracy": 0.5})
    task = bar.bars.tasks[0]
    assert (task.completed, task.total) == (7, 10)
    assert task.fields["text"] == "loss 0.500  accuracy 87.5 %  1,234 images/s"


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3_725, "1:02:05")])
def test_clock(seconds, text):
    assert format_clock(seconds) == text

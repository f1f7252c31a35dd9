import io
import sys
from types import SimpleNamespace

import pytest

from neural_similarity.lab.train import progress
from neural_similarity.lab.train.progress import Bar, Lines, format_clock, show_progress

RECORD = {"loss": 0.5, "accuracy": 0.875, "images_per_second": 1234.5}


def test_lines_are_about_ten_whatever_the_number_of_metrics():
    stream = io.StringIO()
    lines = Lines(1_000, 0, stream)
    for step in range(1, 1_001):
        lines.show_step(step)
        lines.show_metrics(RECORD | {"step": step})
    told = stream.getvalue().splitlines()
    assert len(told) == 10
    assert told[0].startswith("step 100/1,000  loss 0.500  accuracy 87.5 %  1,234 images/s  ")


def test_lines_go_on_after_a_resumed_step():
    stream = io.StringIO()
    lines = Lines(100, 55, stream)
    for step in range(56, 101):
        lines.show_metrics(RECORD | {"step": step})
    told = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert told == [f"{step}/100" for step in (60, 70, 80, 90, 100)]


def test_the_time_left_is_that_of_the_other_steps_at_the_same_pace(monkeypatch):
    stream, now = io.StringIO(), 1_000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    lines = Lines(100, 50, stream)
    for step in range(51, 101):
        now += 6
        lines.show_metrics(RECORD | {"step": step})
    told = [line.rsplit("  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert told == [f"{minutes}:00 left" for minutes in (4, 3, 2, 1, 0)]


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

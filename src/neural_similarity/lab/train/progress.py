"""Progress display: bars in a terminal, a few plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from neural_similarity.lab.data.files import ProgressCallback as Count
from neural_similarity.lab.terminal import make_plain, styled_stream
from neural_similarity.lab.train import distributed

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINES = 10
REFRESHED = 1.0
"""Seconds after which a bar shows newer metrics."""


class Progress:
    """The position and the metrics of a run; nothing where another process shows the same."""

    def show_step(self, step: int) -> None:
        """Show that `step` updates are done."""

    def show_metrics(self, record: dict[str, Any]) -> None:
        """Show a line of metrics."""

    def metrics_due(self) -> bool:
        """Whether to show metrics before they are written."""
        return False


class Lines(Progress):
    """Writes about ten plain lines over a whole run."""

    def __init__(self, steps: int, start: int, stream: TextIO) -> None:
        self.steps, self.start, self.stream = steps, start, stream
        self.shown = start * LINES // steps
        self.began = time.monotonic()

    def show_metrics(self, record: dict[str, Any]) -> None:
        step = record["step"]
        tenth = step * LINES // self.steps
        if tenth > self.shown and "loss" in record:
            self.shown = tenth
            left = (time.monotonic() - self.began) / (step - self.start) * (self.steps - step)
            text = f"step {step:,}/{self.steps:,}  {describe_metrics(record)}"
            self.stream.write(f"{text}  {format_clock(left)} left\n")
            self.stream.flush()


class Bar(Progress):
    """A bar with loss, accuracy, speed and time left."""

    def __init__(self, bars: "RichProgress", steps: int, start: int) -> None:
        self.bars = bars
        self.task = bars.add_task("", total=steps, completed=start, text="")
        self.shown = -REFRESHED

    def show_step(self, step: int) -> None:
        self.bars.update(self.task, completed=step)

    def metrics_due(self) -> bool:
        return time.monotonic() - self.shown >= REFRESHED

    def show_metrics(self, record: dict[str, Any]) -> None:
        self.show_step(record["step"])
        if "loss" in record:
            self.bars.update(self.task, text=describe_metrics(record))
            self.shown = time.monotonic()


def make_bars() -> "RichProgress":
    """A context manager of bars on stderr; they are disabled if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    class Bars(Progress):
        def start(self) -> None:
            """Show the bars; what else is printed goes above them."""
            super().start()
            if not self.disable:
                make_plain()  # rich has put streams of its own in place of ours.

    text = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    console = Console(file=styled_stream(sys.stderr))
    return Bars(
        *(*text, TextColumn("{task.fields[text]}"), TimeLeft()),
        console=console,
        disable=not (console.is_terminal and distributed.is_first()),
        speed_estimate_period=600,
    )


@contextmanager
def show_progress(title: str, steps: int, start: int) -> Iterator[Progress]:
    """Show progress on stderr from step `start` to step `steps`."""
    sys.stderr.write(f"{title}, from step {start:,}\n" if start else f"{title}\n")
    if styled_stream(sys.stderr).isatty():
        with make_bars() as bars:
            yield Bar(bars, steps, start)
    else:
        yield Lines(steps, start, sys.stderr)


@contextmanager
def count_bar(what: str) -> Iterator[Count]:
    """A bar on stderr from the first count to the last, in a terminal only."""
    bars = make_bars()
    task = bars.add_task(what, text="")

    def count(done: int, total: int | None) -> None:
        bars.start()
        bars.update(task, completed=done, total=total)
        if done == total:
            bars.stop()  # The terminal has room for one bar at a time, and training has its own.

    try:
        yield count
    finally:
        bars.stop()


def print_notice(text: str) -> None:
    """Print a notice on stderr, in the first process only."""
    if distributed.is_first():
        sys.stderr.write(f"{text}\n")


def describe_metrics(record: dict[str, Any]) -> str:
    """Loss, accuracy where there is one, and speed of a line of metrics."""
    accuracy = f"accuracy {100 * record['accuracy']:.1f} %  " if "accuracy" in record else ""
    return f"loss {record['loss']:.3f}  {accuracy}{record['images_per_second']:,.0f} images/s"


def format_clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

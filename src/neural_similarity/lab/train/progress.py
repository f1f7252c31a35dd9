"""What a run shows while it trains: a bar in a terminal, a few plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

LINES = 10


class Progress(Protocol):
    """Shows the position and the metrics of a run."""

    def stepped(self, step: int) -> None:
        """Tell that `step` updates are done."""
        ...

    def measured(self, record: dict[str, Any]) -> None:
        """Tell what was written to the metrics."""
        ...


class Lines:
    """About ten plain lines over a whole run."""

    def __init__(self, steps: int, start: int, stream: TextIO) -> None:
        self.steps, self.start, self.stream = steps, start, stream
        self.shown = start * LINES // steps
        self.began = time.monotonic()

    def stepped(self, step: int) -> None:
        """Show nothing: a line is written with the metrics."""

    def measured(self, record: dict[str, Any]) -> None:
        """Write a line whenever another tenth of the steps is done."""
        step = record["step"]
        tenth = step * LINES // self.steps
        if tenth > self.shown and "loss" in record:
            self.shown = tenth
            left = (time.monotonic() - self.began) / (step - self.start) * (self.steps - step)
            text = f"step {step}/{self.steps}  {describe(record)}  {clock(left)} left"
            self.stream.write(text + "\n")
            self.stream.flush()


class Bar:
    """A bar with loss, accuracy, speed and time left, redrawn in place."""

    def __init__(self, steps: int, start: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True), speed_estimate_period=60)
        self.task = self.bar.add_task("", total=steps, completed=start)

    def stepped(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)

    def measured(self, record: dict[str, Any]) -> None:
        """Show the newest metrics."""
        if "loss" in record:
            self.bar.update(self.task, description=describe(record))


@contextmanager
def show(title: str, steps: int, start: int) -> Iterator[Progress]:
    """Progress on stderr over `steps` steps, of which `start` are done already."""
    sys.stderr.write(f"{title}, from step {start:,}\n" if start else f"{title}\n")
    if sys.stderr.isatty():
        bar = Bar(steps, start)
        with bar.bar:
            yield bar
    else:
        yield Lines(steps, start, sys.stderr)


def describe(record: dict[str, Any]) -> str:
    """Loss, accuracy where there is one, and speed of a line of metrics."""
    accuracy = f"accuracy {100 * record['accuracy']:.1f} %  " if "accuracy" in record else ""
    return f"loss {record['loss']:.3f}  {accuracy}{record['images_per_second']:,.0f} images/s"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""What `nsim reproduce` shows: a bar a run in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from neural_similarity.lab.paper.execution import Display
from neural_similarity.lab.paper.plan import Task
from neural_similarity.lab.train.progress import LINES, describe


class Lines:
    """A line when a run begins and ends, and about ten between."""

    def __init__(self, count: int, stream: TextIO) -> None:
        self.count, self.stream = count, stream
        self.over = 0
        self.shown: dict[str, int] = {}

    def started(self, task: Task) -> None:
        """Write that a run has begun or goes on."""
        self.shown[task.title] = task.done * LINES // task.steps
        self._write(task, f"from step {task.done:,} of {task.steps:,}")

    def measured(self, task: Task, record: dict[str, Any]) -> None:
        """Write a line whenever another tenth of the steps is done."""
        tenth = record["step"] * LINES // task.steps
        if "loss" in record and self.shown[task.title] < tenth < LINES:
            self.shown[task.title] = tenth
            self._write(task, f"step {record['step']:,}/{task.steps:,}  {describe(record)}")

    def ended(self, task: Task, text: str) -> None:
        """Write how a run ended, and how many are over."""
        self.over += 1
        self._write(task, f"{text} ({self.over} of {self.count})")

    def _write(self, task: Task, text: str) -> None:
        self.stream.write(f"{task.title}: {text}\n")
        self.stream.flush()


class Bars:
    """A bar for all runs and one for each that is under way."""

    def __init__(self, count: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self.bars = RichProgress(*columns, console=Console(stderr=True), speed_estimate_period=600)
        self.all = self.bars.add_task("runs", total=count, text="")
        self.tasks: dict[str, Any] = {}

    def started(self, task: Task) -> None:
        """Add a run's bar."""
        self.tasks[task.title] = self.bars.add_task(
            task.title, total=task.steps, completed=task.done, text=""
        )

    def measured(self, task: Task, record: dict[str, Any]) -> None:
        """Move a run's bar."""
        bar = self.tasks[task.title]
        self.bars.update(bar, completed=record["step"])
        if "loss" in record:
            self.bars.update(bar, text=describe(record))

    def ended(self, task: Task, text: str) -> None:
        """Turn a run's bar into a line."""
        if task.title in self.tasks:
            self.bars.remove_task(self.tasks.pop(task.title))
        self.bars.advance(self.all)
        self.bars.console.print(f"{task.title}: {text}", highlight=False, markup=False)


@contextmanager
def show(tasks: Sequence[Task]) -> Iterator[Display]:
    """Progress on stderr over the tasks."""
    if sys.stderr.isatty():
        bars = Bars(len(tasks))
        with bars.bars:
            yield bars
    else:
        yield Lines(len(tasks), sys.stderr)

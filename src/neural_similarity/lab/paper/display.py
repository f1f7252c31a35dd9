"""The progress of `nsim reproduce`: how far its processes are, and how each ended."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from neural_similarity.lab.paper.plan import Job
from neural_similarity.lab.terminal import printable
from neural_similarity.lab.train.progress import Bar, Lines, Progress, make_bars


class Display:
    """A bar for all jobs and one for each that is under way; plain lines without a terminal."""

    def __init__(self, count: int) -> None:
        self.bars = make_bars()
        self.all = Bar(self.bars, "runs", count)
        self.count, self.over = count, 0
        self.shown: dict[str, Progress] = {}

    def started(self, job: Job) -> None:
        """Show that a job has begun or was resumed."""
        if self.bars.disable:
            self._write(job, f"from {job.unit} {job.done:,} of {job.steps:,}")
            self.shown[job.title] = Lines(job.steps, job.done, sys.stderr, f"{job.title}: ")
        else:
            self.shown[job.title] = Bar(self.bars, job.title, job.steps, job.done)

    def measured(self, job: Job, record: dict[str, Any]) -> None:
        """Show the newest line of metrics."""
        self.shown[job.title].measured(record)

    def ended(self, job: Job, text: str) -> None:
        """Show how a job ended, and how many have ended."""
        self.over += 1
        self.all.stepped(self.over)
        shown = self.shown.pop(job.title, None)
        if isinstance(shown, Bar):
            self.bars.remove_task(shown.task)
        self._write(job, f"{text} ({self.over} of {self.count})")

    def _write(self, job: Job, text: str) -> None:
        line = f"{job.title}: {text}"
        if self.bars.disable:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        else:
            self.bars.console.print(printable(line), highlight=False, markup=False)


@contextmanager
def show(jobs: Sequence[Job]) -> Iterator[Display]:
    """Progress on stderr over the jobs."""
    display = Display(len(jobs))
    with display.bars:
        yield display

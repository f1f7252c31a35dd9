"""Running what a plan lists: processes of one thread, side by side, each a plain `nsim train`."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from neural_similarity.lab.paper.pace import THREADS
from neural_similarity.lab.paper.plan import Task
from neural_similarity.lab.paper.recording import write_record
from neural_similarity.lab.train import RunError, read_run
from neural_similarity.lab.train.files import locked, read_json
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import METRICS
from neural_similarity.lab.train.stopping import signals_noted

PROGRAM = (sys.executable, "-m", "neural_similarity")
POLL_SECONDS = 0.5
# A second thread gains little beside a second process and stalls where cores are shared.
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS)}


class Display(Protocol):
    """Shows how far the runs are."""

    def started(self, task: Task) -> None:
        """Tell that a run has begun or goes on."""
        ...

    def measured(self, task: Task, record: dict[str, Any]) -> None:
        """Tell a run's newest line of metrics."""
        ...

    def ended(self, task: Task, text: str) -> None:
        """Tell how a run ended."""
        ...


@dataclass
class Outcome:
    """What came of a plan."""

    recorded: list[Path] = field(default_factory=list)
    """Records written."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the title of the task."""
    stopped: int | None = None
    """The signal that stopped it before all was done."""


def execute(
    tasks: Sequence[Task], *, jobs: int, results: Path, data_root: Path, display: Display
) -> Outcome:
    """Run the tasks, `jobs` at a time, and write the record of each when it is finished.

    A run that fails is noted and the others go on. Ctrl-C or SIGTERM lets every running process
    save a checkpoint, from which the next call goes on; a second one does not wait for them.

    Args:
        tasks: what to run, in this order.
        jobs: number of processes side by side.
        results: folder of the records.
        data_root: folder of the data sets.
        display: shows progress.
    """
    runner, waiting = _Runner(results, data_root, display), deque(tasks)
    with signals_noted() as stop:
        try:
            while (waiting or runner.running) and runner.outcome.stopped is None:
                while waiting and len(runner.running) < jobs:
                    runner.begin(waiting.popleft())
                time.sleep(POLL_SECONDS)
                runner.collect()
                if waiting or runner.running:
                    runner.outcome.stopped = stop()
        finally:
            runner.stop()
        while runner.running:
            time.sleep(POLL_SECONDS)
            runner.collect()
    return runner.outcome


class _Runner:
    """The processes that run, and what came of those that have ended."""

    def __init__(self, results: Path, data_root: Path, display: Display) -> None:
        self.results, self.data_root, self.display = results, data_root, display
        self.running: list[tuple[Task, subprocess.Popen[bytes], int]] = []
        """With the length of each one's log when it began."""
        self.outcome = Outcome()

    def begin(self, task: Task) -> None:
        """Start the process of a task, or record a run that is finished already."""
        try:
            if task.record.exists():
                self.display.ended(task, "recorded by another process")
            elif task.folder.exists() and read_run(task.folder).summary.exists():
                self.record(task)
            else:
                log = log_file(task)
                before = log.stat().st_size if log.exists() else 0
                process = launch(train_command(task, self.data_root), log)
                self.running.append((task, process, before))
                self.display.started(task)
        except (RunError, OSError) as error:
            self.fail(task, str(error))

    def collect(self) -> None:
        """Show how far the processes are and deal with those that have ended."""
        for entry in list(self.running):
            task, process, before = entry
            code = process.poll()
            if lines := read_lines(task.folder / METRICS):
                self.display.measured(task, lines[-1])
            if code is None:
                continue
            self.running.remove(entry)
            if code == 0:
                self.record(task)
            elif self.outcome.stopped is None:
                self.fail(task, reason(code, log_file(task), before))
            else:
                self.display.ended(task, "stopped")

    def stop(self) -> None:
        """Let every process that still runs save a checkpoint and end."""
        for _, process, _ in self.running:
            process.send_signal(signal.SIGTERM)

    def record(self, task: Task) -> None:
        """Write the record of a finished run."""
        try:
            run = read_run(task.folder)
            path = write_record(run, self.results)
        except Exception as error:  # Whatever is wrong with one run, the others go on.
            self.fail(task, str(error) or repr(error))
        else:
            self.outcome.recorded.append(path)
            accuracy = read_json(run.summary)["test_accuracy"]
            self.display.ended(task, f"test accuracy {100 * accuracy:.2f} %, {path}")

    def fail(self, task: Task, reason: str) -> None:
        """Note that a run came to nothing."""
        self.outcome.failed[task.title] = reason
        self.display.ended(task, f"failed: {reason}")


def train_command(task: Task, data_root: Path) -> list[str]:
    """The command that begins or continues a run."""
    start, data = [*PROGRAM, "train"], ["--data", str(data_root)]
    if task.folder.exists():
        return [*start, "--resume", str(task.folder), *data]
    settings = ["--budget", repr(task.budget), "--seed", str(task.seed)]
    settings += ["--threads", str(THREADS), "--out", str(task.folder)]
    if task.precision != "auto":
        settings += ["--precision", task.precision]
    return [*start, task.name, *settings, *data]


def log_file(task: Task) -> Path:
    """What a run prints goes beside its folder."""
    return task.folder.with_name(f"{task.folder.name}.log")


def launch(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that writes to `log` and is alone in doing so.

    It has a session of its own, so that Ctrl-C reaches it only through `execute`.

    Raises:
        RunError: another process writes to `log`.
    """
    # The child holds the lock even where it outlives this process.
    with locked(log, f"another process runs it already and writes to {log}") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )


def reason(code: int, log: Path, since: int) -> str:
    """Why a process failed: the signal that killed it, or the last that it wrote.

    Args:
        code: its exit code, minus the signal where one ended it.
        log: what it wrote to.
        since: bytes that were there before.
    """
    if code < 0:
        hint = " (is memory short?)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    written = log.read_bytes()[since:] if log.exists() else b""
    lines = written.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    return last.removeprefix("nsim: ")

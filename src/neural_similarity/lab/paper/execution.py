"""Running the jobs of a plan side by side, each an `nsim` process of one thread."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neural_similarity.files import read_json
from neural_similarity.lab.paper.display import Display
from neural_similarity.lab.paper.pace import THREADS
from neural_similarity.lab.paper.plan import Job
from neural_similarity.lab.paper.recording import write_records
from neural_similarity.lab.session import open_run
from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.files import locked
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import METRICS
from neural_similarity.lab.train.stopping import signals_noted

PROGRAM = (sys.executable, "-m", "neural_similarity")
POLL_SECONDS = 0.5
# A second thread gains little beside a second process and stalls where cores are shared.
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS)}


@dataclass
class Outcome:
    recorded: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """The error of each failed job, by its title."""
    stopped: int | None = None
    """The signal that stopped the executor early."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Runs jobs and writes their records."""

    places: int
    """Number of processes side by side."""
    results: Path
    data_root: Path
    """Folder of the data sets."""
    device: str = "auto"

    def __call__(self, jobs: Sequence[Job], display: Display) -> Outcome:
        """Run `jobs`, each once those that it comes after are done, in this order.

        A job that fails is noted; those that wait for it fail with it, and the others go on. Ctrl-C
        or SIGTERM lets every running process save what it has, from which the next call goes on; a
        second one does not wait for them.
        """
        runner = _Runner(self, display, list(jobs))
        with signals_noted() as stop:
            try:
                while runner.is_busy and runner.outcome.stopped is None:
                    runner.fill()
                    time.sleep(POLL_SECONDS)
                    runner.collect()
                    if runner.is_busy:
                        runner.outcome.stopped = stop()
            finally:
                runner.stop()
            while runner.running:
                time.sleep(POLL_SECONDS)
                runner.collect()
        return runner.outcome

    def command(self, job: Job) -> list[str]:
        """The command that begins or continues a job."""
        goes_on = job.words[0] == "train" and job.folder.exists()
        words = ["train", "--resume", str(job.folder)] if goes_on else job.words
        device = [] if self.device == "auto" else ["--device", self.device]
        return [*PROGRAM, *words, "--data", str(self.data_root), *device]


class _Runner:
    """The running processes, and the outcome of those that have ended."""

    def __init__(self, executor: Executor, display: Display, waiting: list[Job]) -> None:
        self.executor, self.display, self.waiting = executor, display, waiting
        self.running: list[tuple[Job, subprocess.Popen[bytes], int]] = []
        """With the length of each one's log when it began."""
        self.outcome = Outcome()

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.waiting or self.running)

    def fill(self) -> None:
        """Start jobs that need not wait, in their order, while there are places."""
        for job in list(self.waiting):
            failed = [title for title in job.after if title in self.outcome.failed]
            if failed:
                self.waiting.remove(job)
                self.fail(job, self.outcome.failed[failed[0]])
            elif len(self.running) < self.executor.places and self._is_ready(job):
                self.waiting.remove(job)
                self.begin(job)

    def _is_ready(self, job: Job) -> bool:
        open_jobs = [*self.waiting, *(running for running, *_ in self.running)]
        return not {other.title for other in open_jobs} & set(job.after) and all(
            job.folder != running.folder for running, *_ in self.running
        )

    def begin(self, job: Job) -> None:
        """Start the process of a job, or record what is finished already."""
        try:
            if job.record is not None and job.record.exists():
                self.display.ended(job, "recorded by another process")
            elif job.product.exists():
                self.finish(job)
            else:
                log = log_file(job)
                before = log.stat().st_size if log.exists() else 0
                process = launch(self.executor.command(job), log)
                self.running.append((job, process, before))
                self.display.started(job)
        except (RunError, OSError) as error:
            self.fail(job, str(error))

    def collect(self) -> None:
        """Show the progress of the processes and handle those that have ended."""
        for entry in list(self.running):
            job, process, before = entry
            code = process.poll()
            if job.words[0] == "train" and (lines := read_lines(job.folder / METRICS)):
                self.display.measured(job, lines[-1])
            if code is None:
                continue
            self.running.remove(entry)
            if code == 0:
                self.finish(job)
            elif self.outcome.stopped is None:
                self.fail(job, reason(code, log_file(job), before))
            else:
                self.display.ended(job, "stopped")

    def stop(self) -> None:
        """Let every running process save its state and end."""
        for _, process, _ in self.running:
            process.send_signal(signal.SIGTERM)

    def finish(self, job: Job) -> None:
        """Write the records of the job's run, where it has any."""
        try:
            text = "trained"
            if job.record is not None:
                write_records(open_run(job.folder), self.executor.results)
                self.outcome.recorded.append(job.record)
                summary = read_json(job.record)["summary"]
                accuracy = summary.get("test_accuracy", summary.get("accuracy"))
                text = f"test accuracy {100 * accuracy:.2f} %, {job.record}"
        except Exception as error:  # Whatever is wrong with one run, the others go on.
            self.fail(job, str(error) or repr(error))
        else:
            self.display.ended(job, text)

    def fail(self, job: Job, reason: str) -> None:
        """Note that a job failed."""
        self.outcome.failed[job.title] = reason
        self.display.ended(job, f"failed: {reason}")


def log_file(job: Job) -> Path:
    """The log of a run, beside its folder."""
    return job.folder.with_name(f"{job.folder.name}.log")


def launch(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that writes to `log`, which no other process may use.

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
    """Why a process failed: the signal that killed it, or the last line of its log.

    Args:
        code: its exit code, minus the signal where one ended it.
        log: what it wrote to.
        since: bytes that were there before.
    """
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (is memory short?)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    written = log.read_bytes()[since:] if log.exists() else b""
    lines = written.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    return last.removeprefix("nsim: ")

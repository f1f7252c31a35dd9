"""Running the lines of a table: each command a process, stage by stage."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.files import hold_lock
from neural_similarity.lab.train.stopping import catch_signals
from neural_similarity_paper.tables.kinds import Key
from neural_similarity_paper.tables.missing import Line

PROGRAM = (sys.executable, "-m", "neural_similarity")
POLL_SECONDS = 0.5
FORWARDS = os.name == "posix"
"""Whether a signal is passed on: Windows hands Ctrl-C to all processes of a console itself."""


def run_lines(lines: Sequence[Line], jobs: int) -> tuple[dict[Key, str], int | None]:
    """Run lines, `jobs` at a time, stage by stage.

    A line that fails is noted; those that wait for it fail with it, and the others go on. Ctrl-C or
    SIGTERM lets every process save what it has, from which the next call goes on. What several
    processes print goes to FOLDER.log beside each run folder.

    Returns:
        The reason of each failure, and the signal that ended it early.
    """
    failed: dict[Key, str] = {}
    with catch_signals() as stop, ThreadPoolExecutor(jobs) as pool:

        def run_line(line: Line) -> str | None:
            if reasons := [failed[key] for key in line.after if key in failed]:
                return reasons[0]
            if line.records and all(path.exists() for path in line.records):
                return None  # Another command recorded them meanwhile.
            log = line.folder.with_name(f"{line.folder.name}.log") if jobs > 1 else None
            try:
                return _run_commands(line, log, stop)
            except (RunError, OSError, ValueError) as error:  # of the log, which another may have
                return str(error)

        for stage in sorted({line.stage for line in lines}):
            staged = [line for line in lines if line.stage == stage]
            reasons = [pool.submit(run_line, line) for line in staged]
            # A signal may reach any thread, and only this one handles it, once it wakes.
            while wait(reasons, POLL_SECONDS).not_done:
                pass
            for line, reason in zip(staged, (each.result() for each in reasons), strict=True):
                if reason is not None and stop() is None:
                    failed[line.run] = reason
        return failed, stop()


def _run_commands(line: Line, log: Path | None, stop: Callable[[], int | None]) -> str | None:
    """Run the commands of a line; why one failed."""
    taken = f"another process runs it already and writes to {log}"
    with nullcontext() if log is None else hold_lock(log, taken) as output:
        for words in line.commands:
            if stop() is not None:
                return "stopped"
            process = start_process(words, output)
            if code := wait_for(process, stop):
                return f"nsim {words[0]} ended with {code}" + (f", see {log}" if log else "")
    return None


def start_process(words: Sequence[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Start `nsim` with these words, in a session of its own: a Ctrl-C would reach it twice."""
    return subprocess.Popen(
        [*PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[bytes], stop: Callable[[], int | None]) -> int:
    """The exit code of a process, which is told to stop where this one is."""
    while stop() is None:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    if FORWARDS:
        process.send_signal(signal.SIGTERM)
    return process.wait()

"""When a torchrun process dies, the others end with one line that says which one.

Where none died, as in a mismatch of sizes, that line is the error itself.
"""

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torch import distributed as dist

from neural_similarity.lab.errors import PeerDied, RunError
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.run import CONFIG

WAIT_SECONDS = 5.0
"""Longest wait for torchrun to collect a process that died; until then it seems to run."""
BROKEN = re.compile(r"gloo|NCCL|Connection (closed|reset)|Broken pipe")
"""Matches messages of errors in the communication between processes."""


@contextlib.contextmanager
def report_dead_processes(run: Path | None = None) -> Iterator[None]:
    """Raise an error that names the process whose death breaks this one.

    A death shows as a communication error, or as the SIGTERM by which torchrun ends the others. If
    the folder `run` exists, the error says how to continue it.

    Raises:
        PeerDied: another process died.
        RunError: communication failed, and every process of this machine lives.
    """
    if distributed.process_count() == 1:
        yield
        return
    with _explain_sigterm(run):
        try:
            yield
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or BROKEN.search(str(error))):
                raise
            if dead := _dead_ranks(WAIT_SECONDS):
                raise _describe_death(dead, run) from error
            raise _describe_mismatch(error) from error


@contextlib.contextmanager
def _explain_sigterm(run: Path | None) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python hands signals to the main thread only.
        return
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        if dead := _dead_ranks():
            raise _describe_death(dead, run)
        os.kill(os.getpid(), number)

    def ignore_one(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)

    after = before
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except PeerDied:
        after = ignore_one  # torchrun's SIGTERM must not end us before the error is printed.
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is end:  # No signal came.
            signal.signal(signal.SIGTERM, after)


def _describe_death(ranks: list[int], run: Path | None) -> PeerDied:
    who = f"rank {', '.join(map(str, ranks))}"
    goes_on = run is not None and (run / CONFIG).is_file()
    advice = f"continue with nsim train --resume {run}" if goes_on else "run the command again"
    return PeerDied(f"of {distributed.process_count()} processes, {who} died; {advice}")


def _describe_mismatch(error: RuntimeError) -> RunError:
    here = socket.gethostname()
    away = any(host != here for host, _ in distributed.peers())
    perhaps = ", unless one of another machine died" if away else ""
    return RunError(
        f"{distributed.process_count()} processes could not communicate{perhaps}: {error}"
    )


def _dead_ranks(seconds: float = 0.0) -> list[int]:
    """The ranks of this machine's processes that died, as soon as there are any."""
    until = time.monotonic() + seconds
    while not (dead := _now_dead()) and time.monotonic() < until:
        time.sleep(0.02)
    return dead


def _now_dead() -> list[int]:
    here = socket.gethostname()
    places = enumerate(distributed.peers())
    return [rank for rank, (host, number) in places if host == here and not _is_running(number)]


def _is_running(process: int) -> bool:
    """Whether a process of this machine lives, or has not been collected yet by its parent."""
    if sys.platform == "win32":  # Where `os.kill` ends a process, whatever the signal.
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True

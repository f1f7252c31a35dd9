"""Work in child processes, which may be killed at any moment."""

import os
import signal
import sys
import time
import traceback
from pathlib import Path


def started(work, output=os.devnull):
    """The number of a process that does `work`; it ends with 1 after an error.

    It leads a group, to which the processes belong that it starts.

    Args:
        work: what it does.
        output: file for what it prints.
    """
    number = os.fork()
    if number:
        os.setpgid(number, number)
        return number
    code = 1
    try:
        sys.stderr = sys.stdout = Path(output).open("a", encoding="utf-8")
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(number):
    """The exit code of a process, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def killed(work, seconds, *, alone=False):
    """Whether the work was killed, after so many seconds, before it was done.

    Args:
        work: what a process does.
        seconds: how long it may.
        alone: whether the processes that it started live on.
    """
    number, until = started(work), time.monotonic() + seconds
    while time.monotonic() < until and not os.waitid(
        os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.002)
    (os.kill if alone else os.killpg)(number, signal.SIGKILL)
    code = ended(number)
    assert code in (0, -signal.SIGKILL), code
    return code != 0

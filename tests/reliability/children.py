"""Work in child processes, which may be killed at any moment."""

import os
import signal
import sys
import time
from pathlib import Path


def started(work):
    """The number of a process that does `work`; it ends with 1 after an error."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        sys.stderr = sys.stdout = Path(os.devnull).open("w")
        work()
        code = 0
    finally:
        os._exit(code)


def ended(number):
    """The exit code of a process, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def killed(work, seconds):
    """Whether the work was killed, after so many seconds, before it was done."""
    number = started(work)
    time.sleep(seconds)
    os.kill(number, signal.SIGKILL)
    code = ended(number)
    assert code in (0, -signal.SIGKILL), code
    return code != 0

"""Work in child processes, which may be killed at any moment."""

import os
import sys
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

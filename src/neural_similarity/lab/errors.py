"""Errors that end a command with one line. Importing them loads no torch."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(ValueError):
    """The command line names something that does not exist; `nsim` exits with 2."""


class RunError(RuntimeError):
    """A run folder cannot be used as asked; the message says what to do."""


class PeerDied(RunError):
    """Another process of the same run died; all surviving processes give the same message."""


CONTENT_ERRORS = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What reading a damaged file may raise."""


@contextmanager
def content_errors(path: Path) -> Iterator[None]:
    """Name the file in errors about what it holds.

    Raises:
        RunError: the content is not what the code within expects.
    """
    try:
        yield
    except CONTENT_ERRORS as error:
        raise RunError(f"{path} cannot be read: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """What an error says about a file's content, in words that are not Python's."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]!r}" if error.args else "it lacks an entry"
    known = isinstance(error, ValueError | OSError | RuntimeError)
    return str(error) if known else f"a value has another type than it must have: {error}"


class Interrupted(Exception):
    """Training stopped on a signal after saving a checkpoint."""

    def __init__(self, number: int, step: int, run: Path) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} after step {step}, saved; continue with nsim train --resume {run}"
        )
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number

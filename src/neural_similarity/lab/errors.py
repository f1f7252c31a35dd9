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
        raise RunError(f"{path} cannot be read: {error!r}") from error


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

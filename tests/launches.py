"""Processes of `nsim reproduce` that run at once, in this process."""

import contextlib

import pytest

from neural_similarity.lab import cli
from neural_similarity.lab.paper import execution


class Ended:
    """A process that has ended."""

    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code

    def send_signal(self, sig, /):
        raise AssertionError(f"no process is left for {sig}")


@contextlib.contextmanager
def launched_here():
    """The commands that are launched within; each runs at once in this process."""
    commands = []

    def launch(command, log):
        words = list(command[len(execution.PROGRAM) :])
        commands.append(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file, contextlib.redirect_stderr(file):
            with contextlib.redirect_stdout(file):
                return Ended(cli.main(words))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "launch", launch)
        patch.setattr(execution, "POLL_SECONDS", 0)
        yield commands


@pytest.fixture
def launched():
    """See `launched_here`."""
    with launched_here() as commands:
        yield commands

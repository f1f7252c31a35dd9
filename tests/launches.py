"""Processes of `nsim reproduce` that run at once, in this process."""

import contextlib

import pytest

from neural_similarity.lab import cli
from neural_similarity_paper.tables import running


class Ended:
    """A process that has ended."""

    def __init__(self, code):
        self.code = code

    def wait(self, *_):
        return self.code

    def send_signal(self, sig, /):
        raise AssertionError(f"no process is left for {sig}")


@contextlib.contextmanager
def launched_here():
    """The commands that are launched within; each runs at once in this process."""
    commands = []

    def start(words, _output):
        commands.append(list(words))
        return Ended(cli.main(list(words)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "start_process", start)
        yield commands


@pytest.fixture
def launched():
    """See `launched_here`."""
    with launched_here() as commands:
        yield commands

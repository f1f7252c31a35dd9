"""The help of every command line as its parser prints it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO

from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.cli.help_pages import WIDTH_OF_PAGES
from neural_similarity.lab.recipes.listing import BASICS

COMMAND_LINES = {
    **{name: name for name in COMMANDS},
    **{f"train-{name}": f"train {name}" for name, _ in BASICS.values() if name != "quickstart"},
}
"""Command lines by the names of their pages."""


class _Screen(StringIO):
    """An output that shows the lines of frames."""

    encoding = "utf-8"


def parsed_page(command_line: str) -> str:
    """What the parser of a command line prints for --help."""
    name, *words = command_line.split()
    with _new_screen() as screen, suppress(SystemExit):
        COMMANDS[name][0]([*words, "--help"])
    return screen.getvalue()


@contextmanager
def _new_screen() -> Iterator[_Screen]:
    """Let what is printed go to an output of the pages' width, within."""
    before = dict(os.environ)
    os.environ |= {"COLUMNS": str(WIDTH_OF_PAGES), "TERM": "dumb"}
    try:
        with redirect_stdout(_Screen()) as screen:
            yield screen
    finally:
        os.environ.clear()
        os.environ.update(before)

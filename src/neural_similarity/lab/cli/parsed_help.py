"""The help of every command line as its parser prints it, and the file that keeps all pages."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import version
from io import StringIO

from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.cli.adapt_studies import STUDIES
from neural_similarity.lab.cli.help_pages import WIDTH_OF_PAGES
from neural_similarity.lab.recipes import RECIPES

COMMAND_LINES = (
    *COMMANDS,
    *(f"{command} {study}" for command in ("reproduce", "table") for study in STUDIES),
)
RECIPE_LINES = tuple(f"train {name}" for name in RECIPES)


class _Screen(StringIO):
    """A terminal that shows colours and the lines of frames."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Whether escape sequences act on it."""
        return True


def parsed_page(command_line: str) -> str:
    """What the parser of a command line prints for --help on a coloured terminal."""
    name, *words = command_line.split()
    with _new_screen() as screen, suppress(SystemExit):
        COMMANDS[name][0]([*words, "--help"])
    return screen.getvalue()


def pages_content(pages: Mapping[str, str]) -> str:
    """The content of `help.json`: the lines of all pages, and the spans of them that a page has."""
    numbers: dict[str, int] = {}
    spans = {
        name: " ".join(
            _spans([numbers.setdefault(line, len(numbers)) for line in page.split("\n")])
        )
        for name, page in pages.items()
    }
    content = {"tyro": version("tyro"), "pages": spans, "lines": list(numbers)}
    return json.dumps(content, indent=0, ensure_ascii=False) + "\n"


def _spans(numbers: Sequence[int]) -> Iterator[str]:
    """FIRST:END, or FIRST alone, of each run of numbers that follow each other."""
    starts = [at for at, number in enumerate(numbers) if not at or number != numbers[at - 1] + 1]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        first = numbers[start]
        yield f"{first}" if end - start == 1 else f"{first}:{first + end - start}"


@contextmanager
def _new_screen() -> Iterator[_Screen]:
    """Let what is printed go to a terminal of the pages' width, within."""
    before = dict(os.environ)
    os.environ |= {"COLUMNS": str(WIDTH_OF_PAGES), "TERM": "xterm"}
    try:
        with redirect_stdout(_Screen()) as screen:
            yield screen
    finally:
        os.environ.clear()
        os.environ.update(before)

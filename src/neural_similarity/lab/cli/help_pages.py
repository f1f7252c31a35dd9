"""The help of every command, from pages beside the commands: parsers themselves need torch.

`python -m neural_similarity.lab.cli` writes the pages; a test compares them with the parsers'. A
command of the paper's house has its page there. All recipes of a kind have one page, before which
stand the options in which a recipe differs from that of the page.
"""

import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from neural_similarity.files import read_text
from neural_similarity.lab.cli.recipes import listed_families

WIDTH_OF_PAGES = 80


def page_path(command: str) -> Path | None:
    """Where the page of a command is, if its house is here."""
    entries = entry_points(group="neural_similarity.commands", name=command)
    package = next((entry.value.partition(".")[0] for entry in entries), None)
    if package is None:
        return Path(__file__).parent / "pages" / f"{command}.txt"
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "cli" / "pages" / f"{command}.txt"


def print_page(words: Sequence[str]) -> bool:
    """Print the page of a command line that asks for help and nothing else; whether there is one.

    Without one the parser makes it, as for terminals that are narrower or lack the frame's lines.
    """
    if not words or words[-1] not in ("-h", "--help"):
        return False
    narrow = shutil.get_terminal_size().columns < WIDTH_OF_PAGES
    page = None if narrow or sys.stdout.encoding != "utf-8" else help_page(*words[:-1])
    if page is None:
        return False
    sys.stdout.write(page)
    return True


def help_page(command: str = "", *words: str) -> str | None:
    """The page of a command, or of a recipe of `nsim train`."""
    if command == "train" and words:
        return _recipe_page(*words)
    path = None if words and command not in ("table", "reproduce") else page_path(command)
    return read_text(path) if path is not None and path.exists() else None


def _recipe_page(name: str, *others: str) -> str | None:
    """The options by which a recipe differs from that of its kind's page, and that page."""
    rows = (row for family in listed_families().values() for row in family.rows)
    row = next((row for row in rows if row[0] == name and not others), None)
    if row is None:
        return None
    kind, _, settings = row[-1].partition(" ")
    path = page_path("train" if kind == "quickstart" else f"train-{kind}")
    changes = f"{name} is {kind} with {settings}; the defaults below are {kind}'s.\n\n"
    return (changes if settings else "") + read_text(path) if path else None

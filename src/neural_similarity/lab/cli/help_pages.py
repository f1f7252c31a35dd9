"""The help of every command, from pages that ship with the package: parsers themselves need torch.

`python -m neural_similarity.lab.cli` writes the pages; a test compares them with the parsers'.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from neural_similarity.files import read_json
from neural_similarity.lab.terminal import styled_stream

PAGES = Path(__file__).with_name("help.json")
WIDTH_OF_PAGES = 80
COLOUR = re.compile("\x1b\\[[0-9;]*m")


def print_page(words: Sequence[str]) -> bool:
    """Print the page of a command line that asks for help and nothing else; whether there is one.

    Without one the parser makes it, as for terminals that are narrower or lack the frame's lines.
    """
    if not words or words[-1] not in ("-h", "--help"):
        return False
    output = styled_stream(sys.stdout)
    narrow = shutil.get_terminal_size().columns < WIDTH_OF_PAGES
    page = None if narrow or output.encoding != "utf-8" else kept_page(" ".join(words[:-1]))
    if page is None:
        return False
    # The condition of tyro, which prints the parsers' pages.
    coloured = output.isatty() and os.environ.get("TERM") not in (None, "dumb")
    output.write(page if coloured else COLOUR.sub("", page))
    return True


def kept_page(command_line: str) -> str | None:
    """The page of a command line, with its colours; a line that several pages have is kept once."""
    content = read_json(PAGES)
    if (spans := content["pages"].get(command_line)) is None:
        return None
    lines = content["lines"]
    return "\n".join(line for span in spans.split() for line in lines[_as_slice(span)])


def _as_slice(span: str) -> slice:
    """Of FIRST:END, or of FIRST alone."""
    first, _, end = span.partition(":")
    return slice(int(first), int(end or int(first) + 1))

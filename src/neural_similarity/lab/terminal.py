"""What the laboratory prints: no name in a file steers a terminal, and every encoding will do.

Importing it loads no torch.
"""

import codecs
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

ASCII_SPELLINGS = {"Δ": "d", "−": "-", "±": "+-", "×": "x", "—": "-", "…": "...", "←": "<-"}
"""Our own characters where an encoding lacks them; others appear as Python's escapes."""


class Output:
    """A stream of text, its control characters written out; it is no terminal to anyone who asks.

    Args:
        target: where the text goes.
        styled: whether the text is our own, with the escape sequences that colour it; such a
            stream is a terminal where `target` is one.
    """

    def __init__(self, target: TextIO, *, styled: bool = False) -> None:
        self.target, self.styled = target, styled

    def write(self, text: str) -> int:
        """Write text as the target can show it."""
        shown = text if self.styled else escape_controls(text)
        self.target.write(
            _spell_in_encoding(shown, getattr(self.target, "encoding", None) or "utf-8")
        )
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        """Whether escape sequences act on it."""
        return self.styled and self.target.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def escape_controls(text: str) -> str:
    """The text with control characters written out, but for tabs and new lines."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str) -> str:
    """The text in one line: names may hold new lines, and so do errors of torch."""
    lines = (line.strip() for line in escape_controls(text).replace("\t", " ").split("\n"))
    return "; ".join(filter(None, lines))


def plot_label(text: str) -> str:
    """The text as matplotlib shows it: no control characters, and $ begins no formula."""
    return one_line(text).replace("$", r"\$")


def styled_stream(stream: TextIO) -> TextIO:
    """The stream for text with escape sequences of our own, such as bars."""
    target = stream.target if isinstance(stream, Output) else stream
    return cast(TextIO, Output(target, styled=True))


def make_plain() -> None:
    """Let what is written to stdout and stderr from now on steer no terminal."""
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), Output):
            setattr(sys, name, Output(getattr(sys, name)))


def print_traceback(*error: Any) -> None:
    """Print an error that nobody expected as Python does, so that it steers no terminal."""
    Output(sys.stderr).writelines(traceback.format_exception(*error))


@contextmanager
def plain_output() -> Iterator[None]:
    """See `make_plain`, within; streams that the shell closed lead nowhere."""
    # In this order: files of ours that got their numbers would be written to by libraries.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))
    before = sys.stdout, sys.stderr
    make_plain()
    try:
        yield
    except Exception:
        sys.excepthook = print_traceback  # Python prints it when these streams are gone.
        raise
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def styled_output() -> Iterator[None]:
    """Let stdout and stderr take escape sequences of our own, within."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = styled_stream(sys.stdout), styled_stream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _spell_in_encoding(text: str, encoding: str) -> str:
    """The text in the characters of an encoding."""
    return text if text.isascii() else text.encode(encoding, __name__).decode(encoding)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `codecs`: our own characters in ASCII, others as Python's escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    spelled = (
        ASCII_SPELLINGS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking
    )
    return "".join(spelled), error.end


codecs.register_error(__name__, _in_ascii)

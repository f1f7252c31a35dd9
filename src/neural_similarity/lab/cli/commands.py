"""Command dispatch, with the nearest names in errors, and printing. It loads no torch."""

import difflib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.terminal import escape_controls, styled_stream

Command = Callable[[Sequence[str]], int]
"""Takes the words after the command's name and returns the exit code."""
Commands = Mapping[str, tuple[Command, str]]
"""By name, with a line of help."""
WIDTH = 140
NUMBER_COLUMNS = ("recipes", "steps", "classes", "parameters", "MACs")
"""Right-aligned columns."""


def dispatch_command(
    args: Sequence[str], commands: Commands, *, prog: str, noun: str, about: str, examples: str
) -> int:
    """Run the command that the first word names and return its exit code.

    Without a word, as with `--help`, the commands are listed.
    """
    name, *rest = args or ["--help"]
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {name:<12}{text}" for name, (_, text) in commands.items())
        print_line(
            f"usage: {prog} COMMAND ...\n\n{about}\n\ncommands:\n{lines}\n\n"
            f"examples:\n{examples}\n\n`{prog} COMMAND --help` describes a command."
        )
        return 0
    require_known_name(noun, name, commands)
    return commands[name][0](rest)


def require_known_name(noun: str, name: str, names: Collection[str]) -> None:
    """Check that `name` is one of `names`.

    Raises:
        UsageError: it suggests the nearest name, or lists all where none is near.
    """
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"no {noun} is named {name!r}; {hint}")


def say_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print_line(json.dumps(value, indent=2))


def print_line(line: str) -> None:
    """Print a line, or several."""
    sys.stdout.write(f"{line}\n")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wraps: str,
    title: str | None = None,
) -> None:
    """Print one line per row; only the column `wraps` may take more."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left")
    for column in columns:
        justify = "right" if column in NUMBER_COLUMNS else "left"
        table.add_column(column, no_wrap=column != wraps, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*map(escape_controls, row))
    text = StringIO()  # rich would end the process itself when nobody reads on
    output, width = styled_stream(sys.stdout), max(Console().width, WIDTH)
    Console(
        file=text, force_terminal=output.isatty(), width=width, markup=False, emoji=False
    ).print(table)
    output.write(text.getvalue())

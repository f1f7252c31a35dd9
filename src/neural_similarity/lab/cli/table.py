"""Tables in a terminal. Importing it loads no torch."""

import sys
from collections.abc import Iterable, Sequence
from io import StringIO

WIDTH = 140
NUMBERS = ("steps", "classes", "parameters", "MACs")
"""Columns that are aligned at the right."""


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wraps: str,
    title: str | None = None,
) -> None:
    """Print one line a row; only the column `wraps` may take more."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left")
    for column in columns:
        justify = "right" if column in NUMBERS else "left"
        table.add_column(column, no_wrap=column != wraps, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*row)
    text = StringIO()  # rich would end the process itself when nobody reads on
    width = max(Console().width, WIDTH)
    Console(file=text, force_terminal=sys.stdout.isatty(), width=width).print(table)
    sys.stdout.write(text.getvalue())

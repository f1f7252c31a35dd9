"""Tables of plans and adapters, for a terminal and for notebooks."""

from collections.abc import Sequence
from html import escape

TextRows = Sequence[Sequence[str]]
_NUMBERS = ("layers", "scalars", "kB")
"""Heads of columns that are set to the right."""


class PrintedTable:
    """The base of what prints as a table, in notebooks as one of HTML."""

    def table_rows(self) -> TextRows:
        """The head and the rows."""
        raise NotImplementedError

    def table_summary(self) -> str:
        """The line below."""
        raise NotImplementedError

    def __str__(self) -> str:
        rows = self.table_rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        right = [head in _NUMBERS for head in rows[0]]
        lines = ["  ".join(map(_padded, row, widths, right)).rstrip() for row in rows]
        return "\n".join([*lines, self.table_summary()])

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        head, *rows = ["".join(f"<td>{escape(cell)}</td>" for cell in r) for r in self.table_rows()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        head = f"<thead><tr>{head.replace('td>', 'th>')}</tr></thead>"
        return f"<table>{head}<tbody>{body}</tbody></table><p>{escape(self.table_summary())}</p>"


def _padded(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)

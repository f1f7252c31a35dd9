"""Tables as panels of rows, each a recipe and the paper's number; `tables.toml` has them all."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from neural_similarity.lab.recipes import FAMILIES, RECIPES, SUFFIX
from neural_similarity_paper.recipes.adaptation import ADAPTATION_GROUPS

MetricName = Literal["error", "accuracy"]
TABLES_FILE = Path(__file__).with_name("tables.toml")
RELEASED = "-released"
"""What follows the name of a table whose runs train as the authors' released code."""


@dataclass(frozen=True)
class Row:
    label: str
    recipe: str
    paper: float | None = None
    """The paper's number, in percent."""
    top5: float | None = None
    """The paper's top-5 number, in percent."""
    half_width: float | None = None
    """Half the width of the paper's interval: the number after ±."""
    method: str = ""
    """The method that is evaluated on the network, where tasks are learned."""
    shots: int = 0
    """Labelled images of each class of a task, likewise."""


@dataclass(frozen=True)
class Panel:
    """Rows that are compared with each other; the first is the baseline."""

    title: str
    metric: MetricName
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    title: str
    panels: tuple[Panel, ...]
    compared: Mapping[str, str] = field(default_factory=dict)
    """Labels of the rows of the same shots that every row is compared with, by heading; the default
    is the baseline of its panel."""
    mixed: bool = False
    """Whether a row without runs at the table's budget shows those of another."""
    note: str = ""
    """How to read the table."""

    @property
    def all_rows(self) -> tuple[Row, ...]:
        return tuple(row for panel in self.panels for row in panel.rows)

    def choose_rows(self, only: Sequence[str], shots: Sequence[int]) -> list[Row]:
        """The rows whose recipes match a pattern of `only` and that have these shots; or all."""
        known = tuple(dict.fromkeys(row.shots for row in self.all_rows))
        if wrong := [count for count in shots if count not in known and any(known)]:
            raise ValueError(f"`shots` must be among {known}, got {wrong[0]}")
        rows = [row for row in self.all_rows if not row.shots or row.shots in (shots or known)]
        names = list(dict.fromkeys(row.recipe for row in rows))
        for pattern in only:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"`only` must match a recipe of the table ({', '.join(names)}), got {pattern!r}"
                )
        return [row for row in rows if any(fnmatchcase(row.recipe, p) for p in only or ["*"])]

    def compared_rows(self, panel: Panel, row: Row) -> list[Row]:
        if not self.compared:
            return [panel.rows[0]]
        rows = {other.label: other for other in self.all_rows if other.shots == row.shots}
        return [rows[label] for label in self.compared.values()]


def make_table(content: Mapping[str, Any], suffix: str = "") -> Table:
    """The table of an entry of `tables.toml`; with a suffix, of the rows whose recipe has it."""
    metric, shots = content.get("metric", "error"), content.get("shots", ())
    panels = []
    for title, listed in content["panels"].items():
        rows = [replace(r, recipe=r.recipe + suffix) for r in _panel_rows(listed, shots)]
        known = (row for row in rows if row.recipe in RECIPES or not suffix)
        panels.append(Panel(title, metric, tuple(known)))
    title = content["title"] + (", as the released code trains" if suffix else "")
    facts = {name: content[name] for name in ("compared", "mixed", "note") if name in content}
    return Table(title, tuple(panels), **facts)


def _panel_rows(rows: str | list[list[Any]], shots: Sequence[int]) -> tuple[Row, ...]:
    """The rows that are listed, at each number of shots, or every recipe of the group named."""
    if isinstance(rows, str):
        recipes = ADAPTATION_GROUPS[rows] if rows in ADAPTATION_GROUPS else FAMILIES[rows][1]
        return tuple(Row(label, name) for name, (label, _) in recipes.items())
    # Label, recipe, the paper's number, if it has one, and a table of other facts.
    split = [(row[:-1], row[-1]) if isinstance(row[-1], dict) else (row, {}) for row in rows]
    listed = [Row(*cells, **facts) for cells, facts in split]
    if not shots:
        return tuple(listed)
    return tuple(_row_at_shots(row, count, shots[0]) for row in listed for count in shots)


def _row_at_shots(row: Row, count: int, papers: int) -> Row:
    """A row of few-shot learning at a number of shots; the paper's number is of `papers` shots."""
    special = f"{row.recipe}-{count}shot"
    recipe = special if special in RECIPES else row.recipe
    row = replace(row, recipe=recipe, shots=count)
    return row if count == papers else replace(row, paper=None, half_width=None)


_ENTRIES = tomllib.loads(TABLES_FILE.read_text("utf-8"))
TABLES = {name: make_table(entry) for name, entry in _ENTRIES.items()}
"""The tables by the names that `nsim table` and `nsim reproduce` take."""
TABLES |= {f"{name}{RELEASED}": make_table(_ENTRIES[name], SUFFIX) for name in ("4", "8")}

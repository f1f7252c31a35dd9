"""What a table is: panels of rows, each a recipe and the paper's number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from neural_similarity.lab.recipes import RECIPES

MetricName = Literal["error", "accuracy"]


@dataclass(frozen=True)
class Row:
    label: str
    recipe: str
    paper: float | None = None
    """The paper's number, in percent."""
    top5: float | None = None
    """The paper's top-5 number, in percent."""
    parameters: float | None = None
    """The paper's number of parameters, in millions."""
    half_width: float | None = None
    """Half the width of the paper's interval: the number after ±."""
    method: str = ""
    """The method that is evaluated on the network, where tasks are learned."""
    shots: int = 0
    """Labelled images of each class of a task, likewise."""

    @property
    def has_recipe(self) -> bool:
        """Whether the row can be run."""
        return self.recipe in RECIPES


@dataclass(frozen=True)
class Panel:
    """Rows that are compared with each other; the first is the baseline."""

    title: str
    metric: MetricName
    rows: tuple[Row, ...]

    @property
    def baseline_row(self) -> Row:
        """What the other rows are compared with."""
        return self.rows[0]


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
            return [panel.baseline_row]
        rows = {other.label: other for other in self.all_rows if other.shots == row.shots}
        return [rows[label] for label in self.compared.values()]


def on_other_data(table: Table, data: str, before: str, after: str) -> Table:
    """The rows of a table on other data, by recipes of another prefix; the paper has no numbers."""
    panels = tuple(
        Panel(
            panel.title if len(table.panels) > 1 else data,
            panel.metric,
            tuple(_moved_row(row, before, after) for row in panel.rows),
        )
        for panel in table.panels
    )
    return replace(table, title=f"{table.title}, on {data}", panels=panels)


def _moved_row(row: Row, before: str, after: str) -> Row:
    name = after + row.recipe.removeprefix(before)
    return Row(row.label, name, method=row.method, shots=row.shots)

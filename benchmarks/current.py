"""Which rows of a report are of recipes and similarities as they are now."""

from dataclasses import replace

from benchmarks.networks import KNOWN, texts
from benchmarks.report import Report, Row
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import recipe_to_json


def current(report: Report) -> Report:
    """A report without the rows of recipes or similarities that have other settings by now.

    Without its baseline a ratio says nothing: where that has changed, no row is left. Reports that
    do not tell the settings stay as they are.
    """
    if "recipes" not in report.environment:
        return replace(report, rows=tuple(row for row in report.rows if not _is_other(row, report)))
    configs = report.environment["recipes"].items()
    same = {n for n, config in configs if n in RECIPES and config == recipe_to_json(RECIPES[n])}
    if any(row.baseline and row.name not in same for row in report.rows):
        same = set()
    return replace(report, rows=tuple(row for row in report.rows if row.name in same))


def _is_other(row: Row, report: Report) -> bool:
    """Whether a row's similarity was another one."""
    name = row.name.partition(",")[0]
    measured = report.environment.get("similarities", {})
    return name in measured and texts({name} & KNOWN.keys()) != {name: measured[name]}

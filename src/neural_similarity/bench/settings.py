"""Which rows of a report are of recipes as they are now."""

from dataclasses import replace

from neural_similarity.bench.report import Report
from neural_similarity.recipes import RECIPES
from neural_similarity.train.recipe import recipe_to_json


def current(report: Report) -> Report:
    """A report of `nsim bench recipes` without the rows of recipes that have other settings by now.

    Without its baseline a ratio says nothing: where that has changed, no row is left.
    """
    configs = report.environment.get("recipes", {})
    same = {name for name in configs if name in RECIPES}
    same = {name for name in same if configs[name] == recipe_to_json(RECIPES[name])}
    if any(row.baseline and row.name not in same for row in report.rows):
        same = set()
    return replace(report, rows=tuple(row for row in report.rows if row.name in same))

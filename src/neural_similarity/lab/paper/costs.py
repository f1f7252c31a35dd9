"""What an update of every recipe's network takes, as `python -m benchmarks recipes` measured it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_similarity.lab.paper.statistics import Interval
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.files import read_json
from neural_similarity.lab.train.recipe import recipe_to_json

STEP = "step"
"""What the benchmark calls an update."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """What an update of every recipe's network takes, measured side by side."""

    ratios: Mapping[str, Interval]
    """Times over the baseline's, by recipe."""
    baseline: str
    """Recipe of the baseline."""
    source: str
    """Command and machine."""


def read_costs(path: Path) -> StepCosts | None:
    """The first comparison in a benchmark's report.

    Recipes that have other settings by now are left out; None where that is the baseline.

    Raises:
        ValueError: the file is no report of the benchmark `recipes`.
    """
    try:
        report = read_json(path)
        environment, rows = report["environment"], report["rows"]
        if report["bench"] != "recipes" or not rows:
            raise ValueError(f"it is of {report['bench']!r}")
        current = {n for n, c in environment["recipes"].items() if _is_current(n, c)}
        rows = [row for row in rows if row["group"] == rows[0]["group"]]
        baseline = next(row["name"] for row in rows if row["baseline"])
        ratios = {row["name"]: _ratio(row) for row in rows if row["times"]}
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"`costs` must be what `python -m benchmarks recipes` saved, got {path}: {error!r}"
        ) from error
    if baseline not in current:
        return None
    kept = {name: ratio for name, ratio in ratios.items() if name in current}
    return StepCosts(ratios=kept, baseline=baseline, source=_source(report))


def _is_current(name: str, config: dict[str, Any]) -> bool:
    return name in RECIPES and config == recipe_to_json(RECIPES[name])


def _ratio(row: dict[str, Any]) -> Interval:
    timing = row["times"][STEP]
    return Interval(timing["ratio"], timing["low"], timing["high"])


def _source(report: dict[str, Any]) -> str:
    """Command, group and machine, and why the times are in doubt, if they are."""
    environment, group = report["environment"], report["rows"][0]["group"]
    words = ", ".join(f"{name} {value}" for name, value in group.items() if name != "what")
    place = environment["cpu"] if environment["device"] == "cpu" else environment["device"]
    unit = {True: " with AMX", False: " without AMX"}.get(environment.get("amx"), "")
    machine = (
        f"{place}{unit if environment['device'] == 'cpu' else ''}, torch {environment['torch']}"
    )
    source = f"`{environment['command']}`, {words}, on {machine}"
    if environment.get("commit"):
        source += f", code {environment['commit'][:12]}"
    return source

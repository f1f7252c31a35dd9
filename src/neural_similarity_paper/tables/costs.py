"""The time of an update of each recipe's network, by `python -m benchmarks recipes`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.files import read_result
from neural_similarity.lab.train.recipe import recipe_to_json
from neural_similarity.lab.train.statistics import Interval

STEP = "step"
"""The benchmark's name for an update."""
QUIET = 0.1
"""Largest distance of a baseline's quartiles, over the median, on a quiet machine."""
MOST_OTHERS = 0.1
"""Most cores that other work keeps busy on a quiet machine."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """The times of an update of every recipe's network, measured side by side."""

    ratios: Mapping[str, Interval]
    """Time of an update over the baseline's, by recipe."""
    baseline: str
    """Recipe of the baseline."""
    source: str


def read_costs(path: Path) -> StepCosts | None:
    """The first comparison in a benchmark's report.

    Recipes that have other settings by now are left out; None where that is the baseline.

    Raises:
        ValueError: the file is not a report of the benchmark `recipes`.
    """
    return read_result(path, "a report of `python -m benchmarks recipes`", _parse_costs)


def _parse_costs(report: dict[str, Any]) -> StepCosts | None:
    environment, rows = report["environment"], report["rows"]
    if report["bench"] != "recipes" or not rows:
        raise ValueError(f"it is of {report['bench']!r}")
    current = {n for n, c in environment["recipes"].items() if is_current(n, c)}
    spread = max(row["times"][STEP]["spread"] for row in rows if row["baseline"])
    noise = timing_doubt(report["quick"], report["others"], spread)
    group, commit = rows[0]["group"], environment.get("commit")
    words = ", ".join(f"{name} {value}" for name, value in group.items() if name != "what")
    source = f"`{environment['command']}`, {words}, on {machine_name(environment)}"
    source += (f", code {commit[:12]}" if commit else "") + (f" ({noise})" if noise else "")
    rows = [row for row in rows if row["group"] == group]
    baseline, *_ = [row["name"] for row in rows if row["baseline"]]
    ratios = {
        row["name"]: Interval(*(row["times"][STEP][end] for end in ("ratio", "low", "high")))
        for row in rows
        if row["times"] and row["name"] in current
    }
    if baseline not in current:
        return None
    return StepCosts(ratios=ratios, baseline=baseline, source=source)


def timing_doubt(quick: bool, others: float | None, spread: float) -> str | None:
    """Why the times of a benchmark are unreliable, or None.

    Args:
        quick: whether it only tried out the command.
        others: cores that other processes kept busy meanwhile, where that is known.
        spread: the widest quartiles of a baseline's times, over their median.
    """
    if quick:
        return "a quick run to try the command out, not a measurement"
    if (others or 0.0) > MOST_OTHERS:
        return f"not quiet: other processes kept {others:.2f} cores busy"
    if spread > QUIET:
        return f"not quiet: a baseline's times have quartiles {spread:.0%} apart"
    return None


def machine_name(environment: dict[str, Any]) -> str:
    """Processor or GPU, and torch, of a benchmark's environment."""
    device = environment["device"]
    if device == "cpu":
        unit = {True: " with AMX", False: " without AMX", None: ""}[environment.get("amx")]
        device = f"{environment['cpu']}{unit}"
    return f"{device}, torch {environment['torch']}"


def is_current(name: str, config: dict[str, Any]) -> bool:
    """Whether a recipe has these settings; a field that came later had its default."""
    recipe = RECIPES.get(name)
    if recipe is None:
        return False
    later = {field.name: field.default for field in fields(recipe) if field.name not in config}
    return later | config == recipe_to_json(recipe)

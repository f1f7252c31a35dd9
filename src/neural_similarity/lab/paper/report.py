"""A table of the paper beside our runs, whose numbers all come from records."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from neural_similarity.lab.paper.costs import StepCosts
from neural_similarity.lab.paper.records import Record, budget_name, budgets, read_records
from neural_similarity.lab.paper.tables import Metric, Panel, Row, Table
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import scaled
from neural_similarity.lab.train.statistics import (
    LEAST_SEEDS,
    Interval,
    by_image,
    by_pooled_seeds,
    by_seed,
    mean_and_deviation,
    pooled_deviation,
)


@dataclass(frozen=True, kw_only=True)
class Line:
    row: Row
    records: tuple[Record, ...]
    """Our records, in the order of their seeds."""
    metric: Metric
    """What is compared, in percent."""
    common: tuple[int, ...]
    """Seeds that the baseline has too; none for the baseline itself."""
    by_seed: Interval | None
    """Difference to the baseline in points, paired by seed; needs three common seeds."""
    by_image: Interval | None
    """The same, paired by test image; needs one common seed."""
    by_pooled_seeds: Interval | None
    """The same between the means over all seeds of both, by the scatter of the panel's rows."""
    step: Interval | None
    """Time of an update over that of `Report.costs.baseline`, where it was measured."""

    @property
    def values(self) -> list[float]:
        """The metric of every run."""
        return [value(record, self.metric) for record in self.records]

    @property
    def mean(self) -> float:
        """The mean of the metric over the runs."""
        return mean_and_deviation(self.values)[0]

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the runs; None for one run."""
        return mean_and_deviation(self.values)[1]

    @property
    def top5(self) -> tuple[float, float | None] | None:
        """Mean and deviation of the top-5 error in percent; None beside accuracies, or without."""
        found = [record.summary.get("test_top5_error_percent") for record in self.records]
        errors = [error for error in found if error is not None and self.metric == "error"]
        return mean_and_deviation(errors) if errors and len(errors) == len(found) else None

    @property
    def seconds(self) -> float:
        """The mean training time in seconds."""
        return mean_and_deviation([record.summary["seconds"] for record in self.records])[0]


@dataclass(frozen=True, kw_only=True)
class PanelReport:
    panel: Panel
    lines: tuple[Line, ...]

    @property
    def records(self) -> list[Record]:
        """The records of all rows."""
        return [record for line in self.lines for record in line.records]

    @property
    def pooled(self) -> tuple[float, int] | None:
        """Deviation between seeds of one recipe, over all rows, and its degrees of freedom."""
        return pooled_deviation({line.row.recipe: line.values for line in self.lines}.values())

    @property
    def intervals(self) -> int:
        """How many differences there are, each counted as often as it has an interval."""
        each = [(line.by_seed, line.by_image, line.by_pooled_seeds) for line in self.lines]
        return sum(found is not None for line in each for found in line)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A table with the runs at one budget."""

    table: Table
    budget: float
    """Share of the recipes' steps."""
    panels: tuple[PanelReport, ...]
    others: tuple[str, ...]
    """Other budgets at which there are records."""
    costs: StepCosts | None
    """What updates take, where that was measured of one of the rows."""

    @property
    def schedule(self) -> str:
        """The schedule of the runs, and its number of steps."""
        kind = "full" if self.budget == 1 else "reduced" if self.budget < 1 else "extended"
        original = [RECIPES[row.recipe] for row in self.table.rows if row.has_recipe]
        steps = sorted({(scaled(recipe, self.budget).steps, recipe.steps) for recipe in original})
        text = f"{kind} schedule, budget {self.budget:g}"
        if not steps:
            return text
        return f"{text}: {' or '.join(f'{ours:,} of {full:,}' for ours, full in steps)} steps"


def make_report(
    table: Table, *, budget: float, results: Path, costs: StepCosts | None = None
) -> Report:
    """A table of the paper with the records at `budget` in `results`, and what updates take.

    Raises:
        ValueError: a record cannot be used, or records of one panel are of different data.
    """
    known = {} if costs is None else costs.ratios
    panels = tuple(_panel(panel, budget, results, known) for panel in table.panels)
    others = budgets(results, (row.recipe for row in table.rows))
    return Report(
        table=table,
        budget=budget,
        panels=panels,
        others=tuple(other for other in others if float(other) != budget),
        costs=costs if any(row.recipe in known for row in table.rows) else None,
    )


def report_rows(report: Report) -> list[dict[str, Any]]:
    """Every row with its numbers, as JSON can hold them."""
    return [
        {
            **{"panel": panel.panel.title, "label": line.row.label, "recipe": line.row.recipe},
            **{"metric": line.metric, "paper": line.row.paper, "budget": report.budget},
            "seeds": [record.seed for record in line.records],
            "values": line.values,
            "to_baseline": {
                way: interval and [interval.low, interval.mean, interval.high]
                for way, interval in (("by_seed", line.by_seed), ("by_image", line.by_image))
            },
            "summary": line.records[0].summary if line.records else None,
        }
        for panel in report.panels
        for line in panel.lines
    ]


def fullest_budget(recipes: Collection[str], results: Path) -> float:
    """The budget at which most of the recipes have records, the largest of several; or 1."""
    counts = Counter(budget for name in set(recipes) for budget in budgets(results, [name]))
    return max(map(float, counts), key=lambda b: (counts[budget_name(b)], b), default=1.0)


def value(record: Record, metric: Metric) -> float:
    """The metric of a run, in percent."""
    right = 100 * record.correct.double().mean().item()
    return 100 - right if metric == "error" else right


def compare(
    ours: dict[int, Record], baseline: dict[int, Record], metric: Metric
) -> tuple[tuple[int, ...], Interval | None, Interval | None]:
    """The common seeds, and the difference to the baseline in points by seed and by test image.

    By image, each image's difference is averaged over the common seeds first.
    """
    common = tuple(seed for seed in ours if seed in baseline)
    if not common:
        return common, None, None
    seeds = [value(ours[seed], metric) - value(baseline[seed], metric) for seed in common]
    sign = 1 if metric == "accuracy" else -1
    right, right_before = (_stacked(records, common) for records in (ours, baseline))
    images = 100 * sign * (right - right_before).mean(0)
    interval = by_seed(seeds) if len(common) >= LEAST_SEEDS else None
    return common, interval, by_image(images.tolist())


def by_number(records: Iterable[Record]) -> dict[int, Record]:
    """Records of recognition by their seeds, in that order."""
    return {record.seed: record for record in sorted(records, key=lambda record: record.seed)}


def _stacked(records: dict[int, Record], seeds: Sequence[int]) -> torch.Tensor:
    """Which images were right, (seeds, images) in float64."""
    return torch.stack([records[seed].correct for seed in seeds]).double()


def _panel(
    panel: Panel, budget: float, results: Path, costs: Mapping[str, Interval]
) -> PanelReport:
    names = {row.recipe for row in panel.rows if row.has_recipe}
    records = {name: by_number(read_records(results, name, budget)) for name in names}
    _require_same_data(record for found in records.values() for record in found.values())
    baseline = records.get(panel.baseline.recipe, {})
    scatter = pooled_deviation(
        [value(record, panel.metric) for record in found.values()] for found in records.values()
    )
    lines = []
    for row in panel.rows:
        ours = records.get(row.recipe, {})
        before = {} if row == panel.baseline else baseline
        common, seeds, images = compare(ours, before, panel.metric)
        line = Line(
            row=row,
            records=tuple(ours.values()),
            metric=panel.metric,
            common=common,
            by_seed=seeds,
            by_image=images,
            by_pooled_seeds=_pooled(ours, before, panel.metric, scatter) if common else None,
            step=costs.get(row.recipe),
        )
        lines.append(line)
    return PanelReport(panel=panel, lines=tuple(lines))


def _pooled(
    ours: dict[int, Record],
    baseline: dict[int, Record],
    metric: Metric,
    scatter: tuple[float, int] | None,
) -> Interval | None:
    if scatter is None:
        return None
    sides = [[value(record, metric) for record in each.values()] for each in (ours, baseline)]
    return by_pooled_seeds(fmean(sides[0]) - fmean(sides[1]), *scatter, *map(len, sides))


def _require_same_data(records: Iterable[Record]) -> None:
    by_digest = {record.data["digest"]: record for record in records}
    if len(by_digest) > 1:
        paths = " and ".join(str(record.path) for record in by_digest.values())
        raise ValueError(f"`results` must be of the same data to be compared, got {paths}")

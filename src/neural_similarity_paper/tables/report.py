"""A table of the paper beside our runs, whose numbers all come from records."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean

import torch

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import scale_recipe
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.statistics import (
    LEAST_SEEDS,
    by_pooled_seeds,
    by_seed,
    by_seed_and_image,
    mean_and_deviation,
    pooled_deviation,
)
from neural_similarity_paper.tables.costs import StepCosts
from neural_similarity_paper.tables.kinds import Record
from neural_similarity_paper.tables.records import kind_of, read_records, recorded_budgets
from neural_similarity_paper.tables.rows import MetricName, Panel, Row, Table

Groups = Mapping[Hashable, list[Record]]
Scatter = tuple[float, int]
"""Deviation between seeds of one recipe, and its degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a row to another one in points; nothing without a common seed."""

    common: tuple[int, ...] = ()
    """Seeds that both have."""
    by_seed: Interval | None = None
    """Paired by seed; needs three common seeds."""
    by_image: Interval | None = None
    """Paired by test image, or task; needs one common seed."""
    by_both: Interval | None = None
    """Paired by both, each drawn at random; needs three common seeds."""
    by_pooled_seeds: Interval | None = None
    """Between the means over all seeds of both, by the scatter of the panel's rows."""

    @property
    def intervals(self) -> list[Interval]:
        """The intervals that could be computed."""
        intervals = self.by_seed, self.by_image, self.by_both, self.by_pooled_seeds
        return [interval for interval in intervals if interval is not None]


@dataclass(frozen=True, kw_only=True)
class RowReport:
    row: Row
    records: tuple[Record, ...]
    """Our records, which differ in their seed alone."""
    metric: MetricName
    """What is compared, in percent."""
    differences: tuple[Difference, ...]
    """To the rows that `Table.compared_rows` names; nothing to itself."""
    step: Interval | None
    """Time of an update over that of `Report.costs.baseline`, where it was measured."""

    @property
    def baseline_difference(self) -> Difference:
        """To the first of those rows, the baseline of most tables."""
        return self.differences[0]

    @property
    def accuracy_interval(self) -> Interval:
        """Over test images or tasks, each averaged over the seeds; in percent."""
        accuracies = torch.stack([record.accuracies for record in self.records]).mean(0)
        return kind_of(RECIPES[self.row.recipe]).interval(100 * accuracies)

    @property
    def value(self) -> tuple[float, float | None]:
        """Mean and sample deviation of the metric over the runs that did not fail."""
        return mean_and_deviation(metric_values(trained_runs(self.records), self.metric))

    @property
    def top5_error(self) -> tuple[float, float | None] | None:
        """Mean and deviation of the top-5 error in percent; None beside accuracies, or without."""
        all_errors = [record.summary.get("test_top5_error_percent") for record in self.records]
        errors = [error for error in all_errors if error is not None and self.metric == "error"]
        return mean_and_deviation(errors) if errors and len(errors) == len(all_errors) else None


@dataclass(frozen=True, kw_only=True)
class PanelReport:
    panel: Panel
    lines: tuple[RowReport, ...]
    scatter: Scatter | None
    """Over all rows; None where a row may show another budget's runs."""

    @property
    def all_records(self) -> list[Record]:
        return [record for line in self.lines for record in line.records]


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
    def schedule_text(self) -> str:
        """The schedule of the runs, and its number of steps."""
        if self.table.mixed:
            return "" if self.budget == 1 else f"reduced schedule, budget {self.budget:g}"
        kind = "full" if self.budget == 1 else "reduced" if self.budget < 1 else "extended"
        original = [RECIPES[row.recipe] for row in self.table.all_rows]
        steps = sorted(
            {(scale_recipe(recipe, self.budget).steps, recipe.steps) for recipe in original}
        )
        text = f"{kind} schedule, budget {self.budget:g}"
        if not steps:
            return text
        return f"{text}: {' or '.join(f'{ours:,} of {full:,}' for ours, full in steps)} steps"


@dataclass(frozen=True)
class _Reader:
    """Reads the records of a table's rows, each file once, and compares them."""

    table: Table
    results: Path
    asked: float | None
    """The budget that was asked for."""
    steps: Mapping[str, Interval]
    """Times of updates by recipe, see `StepCosts.ratios`."""
    read: dict[tuple[str, float], list[Record]] = field(default_factory=dict)

    @cached_property
    def budget(self) -> float:
        """The budget asked for, or that at which most rows have records, the largest of several."""
        if self.asked is not None:
            return self.asked
        rows = {(row.recipe, row.method, row.shots): row for row in self.table.all_rows}
        counts = Counter(budget for row in rows.values() for budget in self.row_budgets(row))
        return max(counts, key=lambda budget: (counts[budget], budget), default=1.0)

    def record_groups(self, row: Row, budget: float) -> Groups:
        """The records of a row at a budget, by all that they share but the seed."""
        place = row.recipe, budget
        if place not in self.read:
            self.read[place] = read_records(self.results, *place)
        return kind_of(RECIPES[row.recipe]).group_records(self.read[place], row)

    def row_budgets(self, row: Row) -> list[float]:
        """The budgets at which a row has records."""
        known = map(float, recorded_budgets(self.results, [row.recipe]))
        return [budget for budget in known if not row.method or self.record_groups(row, budget)]

    def shown_budget(self, row: Row) -> float:
        """The budget of the records that a row shows."""
        budgets = self.row_budgets(row) if self.table.mixed and self.asked is None else []
        return self.budget if self.budget in budgets else max(budgets, default=self.budget)

    def panel_report(self, panel: Panel) -> PanelReport:
        groups = {row: self.record_groups(row, self.shown_budget(row)) for row in panel.rows}
        scatter = None
        if not self.table.mixed:
            records = {row: list(chain(*each.values())) for row, each in groups.items()}
            by_digest = {record.data["digest"]: record for record in chain(*records.values())}
            if len(by_digest) > 1:
                paths = " and ".join(str(record.path) for record in by_digest.values())
                raise ValueError(f"`results` must be of the same data to be compared, got {paths}")
            by_recipe = {row.recipe: trained_runs(each) for row, each in records.items()}
            scatter = pooled_deviation(metric_values(r, panel.metric) for r in by_recipe.values())
        lines = (
            RowReport(
                row=row,
                records=tuple(records),
                metric=panel.metric,
                differences=tuple(self.row_differences(panel, row, records, scatter)),
                step=self.steps.get(row.recipe),
            )
            for row, row_groups in groups.items()
            for records in row_groups.values() or [[]]
        )
        return PanelReport(panel=panel, lines=tuple(lines), scatter=scatter)

    def row_differences(
        self, panel: Panel, row: Row, ours: list[Record], scatter: Scatter | None
    ) -> Iterator[Difference]:
        """The differences to those of other rows' records that are comparable."""
        for other in self.table.compared_rows(panel, row):
            if other == row or not ours:
                yield Difference()
                continue
            comparable = kind_of(ours[0].recipe).comparable
            candidates = chain(*self.record_groups(other, self.shown_budget(row)).values())
            theirs = [record for record in candidates if comparable(ours[0], record)]
            yield compare_records(ours, theirs, panel.metric, scatter)


def make_report(
    table: Table, *, budget: float | None = None, results: Path, costs: StepCosts | None = None
) -> Report:
    """A table of the paper with our records, and what updates take.

    Without a budget, it is the one at which most rows have records.

    Raises:
        ValueError: a record cannot be used, or records of one panel are of different data.
    """
    steps = {} if costs is None else costs.ratios
    reader = _Reader(table, results, budget, steps)
    others = recorded_budgets(results, (row.recipe for row in table.all_rows))
    return Report(
        table=table,
        budget=reader.budget,
        panels=tuple(map(reader.panel_report, table.panels)),
        others=tuple(other for other in others if float(other) != reader.budget),
        costs=costs if any(row.recipe in steps for row in table.all_rows) else None,
    )


def metric_values(records: Iterable[Record], metric: MetricName) -> list[float]:
    """The metric of every run, in percent."""
    right = (100 * record.accuracies.mean().item() for record in records)
    return [100 - share if metric == "error" else share for share in right]


def trained_runs(records: Iterable[Record]) -> list[Record]:
    """The runs that did not fail, or all of them if every one did."""
    runs = list(records)
    return [record for record in runs if not record.failed] or runs


def compare_records(
    ours: Iterable[Record],
    theirs: Iterable[Record],
    metric: MetricName,
    scatter: Scatter | None = None,
) -> Difference:
    """The difference of records to others that differ in their seed alone.

    Runs that failed are left out, unless all of a side did. By image or task, each one's
    difference is averaged over the common seeds first; of two lists of tasks the shorter is the
    beginning of the longer. With a panel's `scatter` of seeds, there is an interval between the
    means over all seeds, too.
    """
    first, second = (records_by_seed(trained_runs(side)) for side in (ours, theirs))
    common = tuple(seed for seed in first if seed in second)
    if not common:
        return Difference()
    mine, others = ([side[seed] for seed in common] for side in (first, second))
    values = zip(metric_values(mine, metric), metric_values(others, metric), strict=True)
    sign = 1 if metric == "accuracy" else -1
    count = min(len(record.accuracies) for record in (*mine, *others))
    ours_each, theirs_each = (
        torch.stack([record.accuracies[:count] for record in side]) for side in (mine, others)
    )
    mean, before = (fmean(metric_values(side.values(), metric)) for side in (first, second))
    pooled = scatter and by_pooled_seeds(mean - before, *scatter, len(first), len(second))
    by_seed_and_unit = 100 * sign * (ours_each - theirs_each)
    several = len(common) >= LEAST_SEEDS
    return Difference(
        common=common,
        by_seed=by_seed([own - other for own, other in values]) if several else None,
        by_image=kind_of(mine[0].recipe).interval(by_seed_and_unit.mean(0)),
        by_both=by_seed_and_image(by_seed_and_unit) if several else None,
        by_pooled_seeds=pooled,
    )


def records_by_seed(records: Iterable[Record]) -> dict[int, Record]:
    """Records by their seeds, in that order."""
    return {record.seed: record for record in sorted(records, key=lambda record: record.seed)}

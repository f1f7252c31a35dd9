"""The map of adaptation as text and picture: M's lead over every baseline of every cell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from neural_similarity.files import new_file
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.train.scoring import unpack_correct
from neural_similarity.lab.train.statistics import (
    LEAST_SEEDS,
    Interval,
    by_image,
    by_seed_and_image,
    holm,
    mean_and_deviation,
)
from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    FIXED_RATES,
    LABELS,
    MAP_CELLS,
    MAP_WAYS,
    RATE_CHANGES,
    RATES_OF_M,
    Statistics,
    cell_trials,
    rate_trials,
)
from neural_similarity_paper.studies.adapt_runs import cell_path, rates_path, read_sheet
from neural_similarity_paper.tables.markdown import (
    MINUS,
    deviation_text,
    interval_text,
    markdown_rows,
)
from neural_similarity_paper.tables.verdicts import LEVEL

OURS_BOTH = OURS, OURS_UNTUNED = MAP_WAYS[:2]
SHADES = 5
"""Points of lead at which the picture's colours end."""
NEAR = 1
"""Points that a rate may be below the best one to be as good."""
UNDONE_LABEL = "image changed back, network as it is"
MAP_NOTE = (
    "Accuracy on the 10,000 test images, ± its standard deviation over draws of the labelled "
    "images. Leads are those of static full M in points, with 95 % intervals over draws and test "
    "images, crossed, and p-values adjusted by Holm for the baselines of the cell. Rates were "
    f"chosen for each way and number of labels under {', '.join(RATE_CHANGES)}, on images held "
    "out; none on a test image. M's rate by curvature is found on a run's labelled images. A "
    "cell's networks normalise by running statistics of the new images or by the backbone's: by "
    "those with which the untrained network classifies more of the labelled images of all draws. "
    "SSF keeps the backbone's. Runs train in bfloat16, and are scored in it where nothing else is "
    "named."
)
RATES_NOTE = (
    'Accuracy, %, of static full M by learning rate, over the same draws; "by curvature" is the '
    "default of `nsim train adapt` (`--lr 0`). The best rate of a cell is known by its test images "
    "alone."
)


@dataclass(frozen=True)
class Leads:
    """M's lead over every baseline, in points, and its p-value adjusted for their number."""

    over: dict[str, Interval]
    adjusted: dict[str, float]

    @property
    def best_baseline(self) -> str:
        """The baseline with the highest accuracy."""
        return min(self.over, key=lambda way: self.over[way].mean)

    @property
    def least(self) -> Interval:
        """The lead over the best baseline."""
        return self.over[self.best_baseline]

    @property
    def ahead(self) -> bool:
        """Whether M is ahead of the best baseline, and this survives the adjustment."""
        return self.least.mean > 0 and self.adjusted[self.best_baseline] < LEVEL


@dataclass(frozen=True)
class CellReport:
    """What a cell's runs say."""

    change: str
    labels: int
    statistics: Statistics
    rates: dict[str, float]
    trained: dict[str, int]
    correct: dict[str, Tensor]
    """Whether a way was right, boolean (draws, images), for the draws that all ways have."""
    scored: dict[str, str]
    """`scored_text` of every way."""
    leads: dict[str, Leads]
    """Of M with the rate that was chosen, and with its own by curvature."""


def read_cell(results: Path, change: str, labels: int) -> CellReport | None:
    """A cell whose ways have three draws in common at least, or None.

    Raises:
        ValueError: a file is damaged.
    """
    path = cell_path(results, change, labels)
    sheet = read_sheet(path) if path.exists() else None
    if sheet is None or not (rated := rates_path(results, labels, sheet.statistics)).exists():
        return None
    runs, rates = sheet.runs, read_sheet(rated).chosen_rates
    if not {*MAP_WAYS} <= {*rates, *FIXED_RATES}:
        return None
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for trial in cell_trials(change, rates):
        found.setdefault(trial.way, {})
        if str(trial) in runs:
            found[trial.way][trial.draw] = runs[str(trial)]
    drawn = {way: own for way, own in found.items() if way not in ("nothing", "undone")}
    draws = sorted(set.intersection(*(set(own) for own in drawn.values())))
    if len(draws) < LEAST_SEEDS or not all(found.values()):
        return None
    with content_errors(path):
        correct = {way: _correct_images(own, draws) for way, own in found.items()}
        leads = {
            ours: leads_over_baselines(
                {way: own for way, own in correct.items() if way not in OURS_BOTH or way == ours},
                ours,
            )
            for ours in OURS_BOTH
        }
    return CellReport(
        change=change,
        labels=labels,
        statistics=sheet.statistics,
        rates={trial.way: trial.rate for trial in cell_trials(change, rates)},
        trained={way: next(iter(own.values()))["trained"] for way, own in found.items()},
        correct=correct,
        scored={way: scored_text(own.values()) for way, own in found.items()},
        leads=leads,
    )


@dataclass(frozen=True)
class RateReport:
    """M by learning rate in a cell: mean accuracies over all draws, in percent."""

    change: str
    labels: int
    accuracies: dict[float, float]
    by_curvature: float
    lowest: float
    """The worst draw of the rate by curvature."""
    scored: str
    """`scored_text` of the runs."""

    @property
    def lost(self) -> float:
        """Points that the rate by curvature is below the best one."""
        return max(self.accuracies.values()) - self.by_curvature


def read_rates(results: Path, change: str, labels: int) -> RateReport | None:
    """M's rates in a cell, if all have run."""
    path = cell_path(results, change, labels)
    found = read_sheet(path).runs if path.exists() else {}
    trials = rate_trials(change)
    if not all(str(trial) in found for trial in trials):
        return None
    scores: dict[float, list[float]] = {}
    for trial in trials:
        scores.setdefault(trial.rate, []).append(100 * found[str(trial)]["accuracy"])
    own = scores.pop(FIXED_RATES[OURS_UNTUNED])
    means = {rate: fmean(drawn) for rate, drawn in scores.items()}
    scored = scored_text(found[str(trial)] for trial in trials)
    return RateReport(change, labels, means, fmean(own), min(own), scored)


def leads_over_baselines(correct: Mapping[str, Tensor], ours: str = OURS) -> Leads:
    """The lead of our way over all others.

    Args:
        correct: whether a way was right, boolean (draws, images). With fewer than three draws the
            intervals are by image.
        ours: name of our way.
    """
    mine = correct[ours].float()
    changes = {way: 100 * (mine - own.float()) for way, own in correct.items() if way != ours}
    leads = {
        way: by_seed_and_image(change)
        if len(change) >= LEAST_SEEDS
        else by_image(change.mean(0).tolist())
        for way, change in changes.items()
    }
    adjusted = holm([lead.p or 0.0 for lead in leads.values()])
    return Leads(leads, dict(zip(leads, adjusted, strict=True)))


def _correct_images(runs: dict[int, dict[str, Any]], draws: Sequence[int]) -> Tensor:
    """Booleans (draws, images); the only run of a way that trains nothing stands for all."""
    one = next(iter(runs.values()))
    return torch.stack([unpack_correct(runs.get(draw, one)["correct"]) for draw in draws])


def read_map(results: Path) -> list[CellReport]:
    """The cells that can be shown, in the order in which they run."""
    return list(filter(None, (read_cell(results, *key) for key in MAP_CELLS)))


def read_map_rates(results: Path) -> list[RateReport]:
    """M by learning rate in the cells that have tried all, in the order in which they run."""
    return list(filter(None, (read_rates(results, *key) for key in MAP_CELLS)))


def map_to_markdown(
    cells: Sequence[CellReport], rates: Sequence[RateReport] = (), picture: str | None = None
) -> str:
    """The map as Markdown."""
    ahead, own = (sum(cell.leads[ours].ahead for cell in cells) for ours in OURS_BOTH)
    total = len(MAP_CELLS)
    summary = (
        f"{len(cells)} of {total} cells have run. Static full M is ahead of every baseline, after "
        f"adjustment, in {ahead} of them, and with its rate by curvature in {own}."
    )
    parts = [
        "# Where M wins: a map of adaptation (ResNet-20 of CIFAR-10)",
        summary,
        MAP_NOTE,
        *map(_cell_to_markdown, cells),
        *([_rates_to_markdown(rates)] if rates else []),
    ]
    if picture:
        parts.insert(2, f"![M's lead over the best baseline]({picture})")
    return "\n\n".join(parts) + "\n"


def _cell_to_markdown(cell: CellReport) -> str:
    head = ("way", "trained", "rate", "accuracy, %", "lead of M", "p, adjusted")
    own = "lead of M, rate by curvature", "p, adjusted"
    table = markdown_rows((*head, *own), *(_way_cells(cell, way) for way in cell.correct))
    draws = len(cell.correct[OURS])
    title = f"## {CHANGES[cell.change].capitalize()}, {cell.labels} labels of each class"
    kept = {"new": "of the new images", "backbone": "of the backbone"}[cell.statistics]
    return f"{title} ({draws} draws, statistics {kept})\n\n{table}"


def _rates_to_markdown(rates: Sequence[RateReport]) -> str:
    head = ("cell", *(f"{rate:g}" for rate in RATES_OF_M), "by curvature", "its worst draw", "lost")
    rows = (
        (
            f"{CHANGES[cell.change]}, {cell.labels} labels{cell.scored}",
            *(f"{accuracy:.2f}" for accuracy in cell.accuracies.values()),
            *(f"{value:.2f}" for value in (cell.by_curvature, cell.lowest)),
            f"{cell.lost:.2f}".replace("-", MINUS),
        )
        for cell in rates
    )
    near = sum(cell.lost <= NEAR for cell in rates)
    summary = f"It is within {NEAR} point of the best in {near} of {len(rates)} cells."
    return f"## M by learning rate\n\n{RATES_NOTE} {summary}\n\n{markdown_rows(head, *rows)}"


def _way_cells(cell: CellReport, way: str) -> tuple[str, ...]:
    label = WAYS[way][0] if way in WAYS else UNDONE_LABEL
    rate = f"{cell.rates[way]:g}" if cell.trained[way] and cell.rates[way] else ""
    leads = (text for ours in OURS_BOTH for text in lead_cells(way, cell.leads[ours]))
    accuracy = accuracy_text(cell.correct[way]) + cell.scored[way]
    return label, f"{cell.trained[way]:,}", rate, accuracy, *leads


def accuracy_text(correct: Tensor) -> str:
    """Accuracy with its deviation over draws, in percent, of booleans (draws, images)."""
    return deviation_text(*mean_and_deviation((100 * correct.double().mean(1)).tolist()))


def scored_text(runs: Iterable[Mapping[str, Any]]) -> str:
    """The precisions of the scores of runs, where some were not scored in that of training.

    Older runs do not name it: they were scored in bf16, as all of these trained.
    """
    found = sorted({run.get("score_precision", "bf16") for run in runs})
    return "" if found == ["bf16"] else f" (scores: {' and '.join(found)})"


def lead_cells(way: str, leads: Leads) -> tuple[str, str]:
    """M's lead over a way and its p-value, if it is a baseline."""
    if way not in leads.over:
        return "", ""
    return interval_text(leads.over[way]), f"{leads.adjusted[way]:.3f}"


def draw_map(cells: Sequence[CellReport], path: Path) -> None:
    """Draw the lead over the best baseline by change and labels; a star where it is shown.

    Args:
        cells: those that have run.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    labels: list[int] = sorted(LABELS)
    values = torch.full((len(CHANGES), len(labels)), torch.nan)
    figure = Figure(figsize=(6, 6.5), layout="constrained")
    axes = figure.subplots()
    for cell in cells:
        row, column = list(CHANGES).index(cell.change), labels.index(cell.labels)
        leads = cell.leads[OURS]
        lead = leads.least.mean
        values[row, column] = lead
        text = f"{lead:+.1f}{'*' if leads.ahead else ''}\n{leads.best_baseline}"
        color = "white" if abs(lead) > 0.6 * SHADES else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    axes.set_facecolor("lightgray")
    image = axes.imshow(values.numpy(), cmap="RdBu", vmin=-SHADES, vmax=SHADES, aspect="auto")
    axes.set_yticks(range(len(CHANGES)), list(CHANGES.values()))
    axes.set_xticks(range(len(labels)), [f"{count} labels" for count in labels])
    axes.set_title(
        "Static full M over the best baseline, points\n* ahead of all, by Holm; gray: not run"
    )
    figure.colorbar(image, ax=axes, shrink=0.6)
    with new_file(path) as file:
        figure.savefig(file, format="png")

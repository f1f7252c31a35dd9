"""Where a spatial adapter is the right shape: a deblurring network and other cameras.

A cell is a network, a camera and a number of image pairs. Every way trains on the same draws of
pairs for the same steps, at a rate of its own that is chosen on other cameras and images.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.statistics import by_seed_and_image, holm, mean_and_deviation
from neural_similarity_paper.studies.rates import RateSearch, SearchPlace, Trial
from neural_similarity_paper.studies.restore_task import (
    BATCH,
    CAMERAS,
    RATE_CAMERAS,
    STEPS,
    WAYS,
    Deblurring,
    digest_of_tensors,
    load_sharp,
    observe,
    score_images,
    train_on,
    trained_network,
)
from neural_similarity_paper.studies.sheets import (
    ReportLine,
    Sheet,
    filling_alone,
    open_sheet,
    read_sheet,
)
from neural_similarity_paper.tables.markdown import (
    CLEAR,
    deviation_text,
    interval_text,
    markdown_rows,
)

RESTORE = "adapt-restore"
"""Name of the table, and folder of the sheets below that of all results."""
OURS = "m"
UNTRAINED = {"input": "the camera's image", "nothing": "as it is", "turned": "M turned, untrained"}
TRAINED = {way: label for way, (label, _) in WAYS.items() if way not in UNTRAINED}
DRAWS, RATE_DRAWS = (1, 2, 3, 4, 5), (11, 12)
FIRST_RATES = (1e-3, 3e-3, 0.01)
"""Where the choice of a rate of Adam's begins."""
FOR_RATES = 100
"""Of the images that adaptations draw from, the last ones are for the choice of rates."""
FIELDS = {"score": float | int, "trained": int, "images": list}
"""Of a run: the mean of `images`, their ratios in dB, and how many numbers trained."""
LEVEL = 0.05
NOTE = (
    "Peak signal-to-noise ratio in dB of 100 test images, mean ± standard deviation over five "
    f"draws of the pairs; {STEPS} steps of Adam on {BATCH} crops. The rate of every way is chosen "
    "for each number of pairs on other cameras and other images. Leads of M have 95 % intervals "
    "over draws and images, crossed; one star: p < 0.05 after Holm's adjustment for the ways of "
    "the cell, two: for all leads of this page as well. A cell where no way beats the camera's own "
    "image ranks nothing."
)


class Cell(NamedTuple):
    """A number of image pairs of a camera, for a network."""

    dataset: str
    width: int
    pairs: int
    camera: str

    @property
    def group(self) -> str:
        """All but the camera."""
        return f"{self.dataset}-{self.width}-{self.pairs}"

    def search(self, way: str) -> RateSearch:
        """The choice of a way's rate for the cell's group."""
        return RateSearch(way, SearchPlace(tuple(RATE_CAMERAS), RATE_DRAWS, FIRST_RATES))

    def trials(self, scores: Mapping[str, float]) -> dict[str, list[Trial]]:
        """The runs of every way, as far as its rate is chosen; what does not train runs once."""
        known = [way for way in TRAINED if not self.search(way).missing(scores)]
        rates = {way: self.search(way).choose(scores) for way in known}
        fixed = [way for way in UNTRAINED if way != "turned" or self.camera == "turned-90"]
        return {way: [Trial(way, (1.0,), self.camera, 0)] for way in fixed} | {
            way: [Trial(way, (rate,), self.camera, draw) for draw in DRAWS]
            for way, rate in rates.items()
        }


GROUPS = (("mini-imagenet", 24, 4), ("mini-imagenet", 64, 4), ("mini-imagenet", 24, 1),
          ("mini-imagenet", 24, 16), ("cifar10", 24, 4), ("cifar10", 24, 1), ("cifar10", 24, 16),
          ("mini-imagenet", 64, 1), ("mini-imagenet", 64, 16))  # fmt: skip
"""Data, channels and pairs in the order in which they run."""


def run_restore(data: Path, results: Path, report: ReportLine) -> None:
    """Choose rates and run all cells that lack runs; every run is kept."""
    with filling_alone(results / RESTORE):
        for group in GROUPS:
            cells = [Cell(*group, camera) for camera in CAMERAS]
            _run_group(cells, data, results, report)


def _run_group(cells: list[Cell], data: Path, results: Path, report: ReportLine) -> None:
    dataset, width, count, _ = cells[0]
    sharp = load_sharp(dataset, data)
    network = trained_network(width, sharp, Path("runs") / RESTORE / f"{dataset}-{width}.pt")
    digests = {
        "backbone": digest_of_tensors(network.state_dict()),
        "data": digest_of_tensors(sharp),
    }
    sheet = open_sheet(_sheet_path(cells[0], results), FIELDS, **digests)
    if changed := [name for name in digests if sheet.facts[name] != digests[name]]:
        raise ValueError(f"{sheet.path} is of another {' and '.join(changed)}; move it away")

    def run(trials: list[Trial], held_out: bool) -> None:
        for trial in trials:
            if str(trial) not in sheet.runs:
                sheet.add(trial, run_trial(network, trial, count, sharp, held_out))
                report(f"{sheet.path.stem}: {trial}: {scores_of(sheet)[str(trial)]:.2f} dB")

    for way in TRAINED:
        while trials := cells[0].search(way).missing(scores_of(sheet)):
            run(trials, held_out=True)
    for cell in cells:
        for trials in cell.trials(scores_of(sheet)).values():
            run(trials, held_out=False)


def _sheet_path(cell: Cell, results: Path) -> Path:
    return results / RESTORE / f"{cell.group}.json"


def scores_of(sheet: Sheet) -> dict[str, float]:
    """Mean ratios by trial."""
    return {trial: run["score"] for trial, run in sheet.runs.items()}


def run_trial(
    backbone: Deblurring, trial: Trial, count: int, sharp: Mapping[str, Tensor], held_out: bool
) -> dict[str, Any]:
    """Adapt a copy of the network, and score it on test or held-out images."""
    camera = (CAMERAS | RATE_CAMERAS)[trial.change]
    scored = observe(sharp["held_out" if held_out else "test"], camera, 0)
    network, trained = deepcopy(backbone), 0
    if trial.way != "input":
        torch.manual_seed(trial.draw)
        WAYS[trial.way][1](network)
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if trained:
        images = sharp["draws"]
        images = images[-FOR_RATES:] if held_out else images[:-FOR_RATES]
        order = torch.randperm(len(images), generator=seeded_generator("restore-draw", trial.draw))
        pairs = observe(images[order[:count]], camera, 1, trial.draw)
        train_on(network, pairs, BATCH, STEPS, trial.rates[0], trial.draw)
    with torch.no_grad():
        restored = scored.observed if trial.way == "input" else network(scored.observed)
    ratios = score_images(restored, scored.sharp).nan_to_num(nan=0.0)  # NaN where it diverged.
    images = [round(ratio, 3) for ratio in ratios.tolist()]
    return {"score": fmean(images), "trained": trained, "images": images}


@dataclass(frozen=True)
class CellReport:
    """What the runs of a cell say."""

    cell: Cell
    ratios: dict[str, Tensor]
    """By way, (draws, images) in dB."""
    trained: dict[str, int]

    @cached_property
    def leads(self) -> dict[str, Interval]:
        """Those of M over each way that trains; none where none beats the camera's image."""
        own = self.ratios
        if max(own[way].mean() for way in TRAINED) <= own["input"].mean():
            return {}
        return {way: by_seed_and_image(own[OURS] - own[way]) for way in TRAINED if way != OURS}


def read_cells(results: Path) -> list[CellReport]:
    """The cells all of whose runs are there.

    Raises:
        ValueError: a sheet is damaged.
    """
    reports = []
    for cell in (Cell(*group, camera) for group in GROUPS for camera in CAMERAS):
        if not (path := _sheet_path(cell, results)).exists():
            continue
        runs = (sheet := read_sheet(path, FIELDS)).runs
        trials = cell.trials(scores_of(sheet))
        if trials.keys() >= TRAINED.keys() and all(
            str(t) in runs for ts in trials.values() for t in ts
        ):
            by_way = {way: [runs[str(trial)] for trial in own] for way, own in trials.items()}
            ratios = {w: torch.tensor([run["images"] for run in own]) for w, own in by_way.items()}
            trained = {way: own[0]["trained"] for way, own in by_way.items()}
            reports.append(CellReport(cell, ratios, trained))
    return reports


def restore_to_markdown(results: Path) -> str:
    """A table of each data set, width and number of pairs that has run, by camera."""
    reports = read_cells(results)
    total = len(GROUPS) * len(CAMERAS)
    parts = ["# Deblurring: other cameras", f"{len(reports)} of {total} cells have run.", NOTE]
    among_all = holm([lead.p or 0.0 for each in reports for lead in each.leads.values()])
    adjusted = iter(among_all)
    texts: dict[str, dict[str, list[str]]] = {}
    for each in reports:
        rows = texts.setdefault(each.cell.group, {})
        in_cell = holm([lead.p or 0.0 for lead in each.leads.values()])
        stars = {
            way: (p < LEVEL) + (next(adjusted) < LEVEL)
            for way, p in zip(each.leads, in_cell, strict=True)
        }
        for way, label in (UNTRAINED | TRAINED).items():
            row = rows.setdefault(way, [label, f"{each.trained.get(way, 0):,}"])
            row.append(_cell_text(each, way, stars.get(way, 0)))
    for group, rows in texts.items():
        cameras = [each.cell.camera for each in reports if each.cell.group == group]
        head = ("way", "trained", *(CAMERAS[camera].label for camera in cameras))
        parts += [f"## {group}: data, channels, pairs", markdown_rows(head, *rows.values())]
    return "\n\n".join(parts) + "\n"


def _cell_text(report: CellReport, way: str, stars: int) -> str:
    """The ratio, and M's lead."""
    if way not in report.ratios:
        return ""
    text = deviation_text(*mean_and_deviation(report.ratios[way].mean(1).tolist()))
    if way not in report.leads:
        return text
    return f"{text}; {interval_text(report.leads[way])} {CLEAR * stars}".rstrip()

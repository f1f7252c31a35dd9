"""The default of `nsim train adapt` with a new head, in cells chosen before the first run.

docs/evidence/new-heads.md has the design and the law.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from neural_similarity.lab.data import Dataset, load_dataset
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity_paper.recipes.adaptation import HEADED, NETWORKS, RATES
from neural_similarity_paper.recipes.reading import setting_fields
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.adapt_training import MemoryRun
from neural_similarity_paper.studies.trials import (
    ReportLine,
    Trial,
    filling_alone,
    open_sheet,
    read_sheet,
)
from neural_similarity_paper.tables.markdown import markdown_rows

NEW_HEADS = "new-heads"
"""Folder of the records below that of all results."""
SEEDS = (21, 22, 23)
FIVE_RATES, MARGIN = (0.003, 0.01, 0.03, 0.1, 0.3), 0.02
_CONTENT = STUDY_ENTRIES["new-heads"]
GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (folder, NETWORKS[network] | settings)
    for name, (folder, network, settings) in _CONTENT["groups"].items()
}
"""Folders of the images, and networks."""


class HeadCell(NamedTuple):
    """Images and network, images of each class, what trains, by which statistics, with flips."""

    group: str
    per_class: int
    train: str
    norm: str
    flip: bool
    tuned: bool = False
    """Whether it also runs by gradient descent at five rates."""
    seeds: tuple[int, ...] = SEEDS

    @property
    def trials(self) -> tuple[tuple[str, float], ...]:
        """Ways and rates: the default, the probe at its records' rate, and five rates."""
        pair = (("default", 0.0), ("probe", RATES[self.group]["head"]))
        return (*pair, *(("rate", rate) for rate in FIVE_RATES)) if self.tuned else pair


CELLS = {name: HeadCell(**setting_fields(fields)) for name, fields in _CONTENT["cells"].items()}
RUNS = sorted(
    (
        Trial(way, (rate,), name, seed)
        for name, cell in CELLS.items()
        for seed in cell.seeds
        for way, rate in cell.trials
    ),
    key=lambda run: (run.way == "rate", CELLS[run.change].group != "signs", run.draw),
)
"""All runs: defaults and probes first, of these the short ones, a seed after the other."""


def head_recipe(run: Trial, data: Path) -> AdaptationRecipe:
    """The recipe of a run, its files below `data`."""
    cell = CELLS[run.change]
    fields = GROUPS[cell.group][1] | HEADED | {"per_class": cell.per_class, "norm": cell.norm}
    fields |= {"flip": cell.flip, "train": "head" if run.way == "probe" else cell.train}
    for name in ("backbone", "weights"):
        if fields.get(name, "").startswith("data/"):
            fields[name] = str(data / fields[name].removeprefix("data/"))
    return AdaptationRecipe(**fields, dataset="folder", lr=run.rates[0], seed=run.draw, threads=1)


@lru_cache(maxsize=2)
def _images(folder: Path, size: int) -> Dataset:
    return load_dataset("folder", root=folder, image_size=size)


def sheet_path(results: Path) -> Path:
    """The file of all runs."""
    return results / NEW_HEADS / "runs.json"


def run_new_heads(data: Path, results: Path, report: ReportLine) -> None:
    """Run what is missing."""
    with filling_alone(results / NEW_HEADS):
        sheet = open_sheet(sheet_path(results))
        for run in RUNS:
            sheet.run(run, lambda run: train_as_command(run, data), report)


def train_as_command(run: Trial, data: Path) -> dict[str, Any]:
    """Train and score as `nsim train adapt` does, in no folder."""
    folder, fields = GROUPS[CELLS[run.change].group]
    whole, recipe = _images(data / folder, fields["image_size"]), head_recipe(run, data)
    memory = MemoryRun.start(recipe, whole, data)
    memory.take_steps(range(memory.run.recipe.steps))
    facts = memory.facts()
    facts |= {field: getattr(memory.run.recipe, field) for field in ("lr", "head_lr", "optimizer")}
    return facts | {"finite": memory.is_finite}


LEAD, BEHIND = "least lead over the probe", "behind it"


def cell_facts(name: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the law asks of a cell, by heading; None where too little has run."""
    seeds = CELLS[name].seeds
    default, probe, *rates = (
        {s: r for s in seeds if (r := runs.get(str(Trial(way, (rate,), name, s))))}
        for way, rate in CELLS[name].trials
    )

    def mean(own: Mapping[int, Mapping[str, Any]]) -> float | None:
        return fmean(run["accuracy"] for run in own.values()) if len(own) == len(seeds) else None

    means = [mean(own) for own in rates]
    best = None if None in means else max(filter(None, means), default=None)
    ours, both = mean(default), default.keys() & probe.keys()
    return {
        "finite": all(run["finite"] for run in default.values()) if default else None,
        "default": ours,
        LEAD: min((default[s]["accuracy"] - probe[s]["accuracy"] for s in both), default=None),
        "best of five rates": best,
        BEHIND: None if best is None or ours is None else best - ours,
    }


def new_heads_to_markdown(results: Path) -> str:
    """What has run, as a table, and how far the law holds."""
    runs = read_sheet(sheet_path(results)).runs
    facts = {name: cell_facts(name, runs) for name in CELLS}
    leads, behind = (
        [fact[key] for fact in facts.values() if fact[key] is not None] for key in (LEAD, BEHIND)
    )
    verdict = (
        f"{len(runs.keys() & {*map(str, RUNS)})} of {len(RUNS)} runs. Not finite: "
        f"{sum(fact['finite'] is False for fact in facts.values())} cells. More than two points "
        f"below the probe of a seed: {sum(lead < -MARGIN for lead in leads)} of {len(leads)} "
        "cells. Within two points of the best of five rates: "
        f"{sum(gap <= MARGIN for gap in behind)} of {len(behind)} cells."
    )
    rows = [
        (name, *map(str, cell[:5]), *map(_text, facts[name].values()))
        for name, cell in CELLS.items()
    ]
    head = ("cell", "images", "of each", "trains", "statistics", "flips", *facts["A"])
    title = "# The default with a new head"
    return "\n\n".join([title, verdict, markdown_rows(head, *rows)]) + "\n"


def _text(value: bool | float | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{100 * value:.2f}"

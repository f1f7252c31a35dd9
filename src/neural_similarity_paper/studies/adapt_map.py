"""The map of adaptation: what M adds to what people train, by change of images and labels.

A cell is a change and a number of labelled images of each class. The backbone has seen none of
them: they come from a half of the test images, and the other half is scored. Rates are chosen on
held-out images of the first half under changes that the map does not contain, and beside that all
ways run at rates by curvature. M with a way takes M's rate and that way's: it has no choice of its
own, so that both are tuned equally. Whether networks normalise by running statistics of the new
images or by the backbone's is chosen for all ways of a cell by its labelled images, before any
training.
"""

from pathlib import Path
from typing import Any

from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity_paper.corruption import GEOMETRY, UNDONE
from neural_similarity_paper.recipes.adaptation import CHANGED, WAYS, way_fields
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.adapt_study import CURVED, Cell, Study, study_fields
from neural_similarity_paper.studies.adapt_training import MemoryRun, backbone_terms, load_halves
from neural_similarity_paper.studies.trials import SearchPlace, Sheet, Trial

CHANGES: dict[str, str] = STUDY_ENTRIES["adapt-map"]["changes"]
"""Changes of the map with their labels."""
LABELS = (10, 5, 50)
"""Labelled images of each class."""
DRAWS = (1, 2, 3, 4, 5)
"""Seeds of a cell."""
RATE_CHANGES = ("rotation-20", "zoom-1.15", "blur-1.5")
"""Changes on which rates are chosen; none is of the map."""
FIRST_RATES = (3e-3, 0.01, 0.03)
PLACE = SearchPlace(RATE_CHANGES, (11, 12, 13), FIRST_RATES)
LONGER = {50: 2}
"""Factor on the steps for some numbers of labels."""
KEEPING = ("nothing", "undone", "ssf")
"""Ways that keep the backbone's statistics in every cell: those of the batch undo SSF."""


def trial_recipe(trial: Trial, labels: int, statistics: str = "new") -> AdaptationRecipe:
    """The recipe of a run, but for rates; `nsim train adapt` with its fields trains the same."""
    way = trial.way.removesuffix(CURVED)
    undone = UNDONE if way == "undone" else ""
    kept = way in KEEPING or (statistics == "backbone" and way != "statistics")
    times, fields = LONGER.get(labels, 1), way_fields(CHANGED | WAYS[way][1])
    drops = tuple(times * drop for drop in fields["drops"])
    fields |= {"steps": times * fields["steps"], "drops": drops, "per_class": labels}
    fields |= {"norm": "eval" if kept else "train", "lr": 1.0, "seed": trial.draw}
    dataset = f"cifar10-{trial.change}{undone}"
    return AdaptationRecipe(**fields, dataset=dataset, threads=1, precision="bf16")


def run_map_trial(
    trial: Trial, data: Path, held_out: bool, labels: int, statistics: str
) -> dict[str, Any]:
    """Train and score a way under a change."""
    recipe = trial_recipe(trial, labels, statistics)
    memory = MemoryRun.start(recipe, load_halves(recipe.dataset, data, held_out), data)
    return memory.train(trial.rates, trial.way.removesuffix(CURVED) == "full-then-all")


def choose_statistics(sheet: Sheet, cell: Cell, data: Path) -> None:
    """Those by which the untrained network classifies more labelled images of all draws."""
    if "statistics" not in sheet.facts:
        correct = {
            kind: sum(_labelled_correct(way, cell, draw, data) for draw in cell.draws)
            for kind, way in (("new", "statistics"), ("backbone", "nothing"))
        }
        best = max(correct, key=lambda kind: correct[kind])
        sheet.facts |= {"labelled_correct": correct, "statistics": best}
        sheet.write()


def _labelled_correct(way: str, cell: Cell, draw: int, data: Path) -> int:
    """How many of its labelled images a network classifies rightly, of a way that trains none."""
    recipe = trial_recipe(Trial(way, (1.0,), cell.changes[0], draw), cell.facts["labels"])
    memory = MemoryRun.start(recipe, load_halves(recipe.dataset, data, False), data)
    memory.fit_parts((), range(memory.run.recipe.steps))
    return int(memory.score(memory.task.dataset.train).sum())


def map_cell(change: str, labels: int, draws: tuple[int, ...] = DRAWS) -> Cell:
    """A cell of the map."""
    return Cell(
        f"{change}-{labels}",
        f"{CHANGES[change]}, {labels} labels",
        (change,),
        draws,
        PLACE,
        f"{change}-{labels}",
        f"rates-{labels}",
        () if change in GEOMETRY else ("undone",),
        {"labels": labels},
    )


MAP = Study(
    **study_fields("adapt-map"),
    cells=tuple(map_cell(change, labels) for labels in LABELS for change in CHANGES),
    run_trial=run_map_trial,
    begin=choose_statistics,
    terms=backbone_terms,
)

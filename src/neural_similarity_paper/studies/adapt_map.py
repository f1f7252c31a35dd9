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
from neural_similarity_paper.studies.adapt_study import CURVED, Cell, Column, Study, Way
from neural_similarity_paper.studies.adapt_training import (
    backbone_terms,
    fit_groups,
    load_halves,
    run_in_memory,
    score_in_memory,
    start_run,
)
from neural_similarity_paper.studies.rates import SearchPlace, Trial
from neural_similarity_paper.studies.sheets import Sheet

CHANGES = {
    "noise-25": "noise",
    "rotation-30": "turned by 30°",
    "half-resolution": "half resolution",
    "blur-1": "blur",
    "lens-0.8": "barrel lens",
    "rotation-45": "turned by 45°",
    "rotation-15": "turned by 15°",
    "rotation-90": "turned by 90°",
    "zoom-0.75": "zoom 0.75",
    "zoom-1.33": "zoom 1.33",
    "shear-0.4": "shear",
    "contrast-0.2": "contrast",
}
"""Changes of the map with their labels; the first six were those of a pilot."""
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
UNDRAWN = ("nothing", "undone")
"""Ways whose answers do not depend on the draw."""
MAP_WAYS = {
    way: Way(WAYS[way][0], (way,) if rates is None else rates, alone, way not in UNDRAWN)
    for way, rates, alone in (
        ("full", None, ""),
        ("norm", None, ""),
        ("full-norm", ("full", "norm"), "norm"),
        ("tsa", None, ""),
        ("full-tsa", ("full", "tsa"), "tsa"),
        ("all", None, ""),
        ("full-all", ("full", "all"), "all"),
        ("full-then-all", ("full", "all"), "all"),
        ("statistics", (), ""),
        ("nothing", (), ""),
        ("undone", (), ""),
        *((way, None, "") for way in ("atoms-9", "atoms", "residual-vector", "lora", "lora-c")),
        *((way, None, "") for way in ("oft", "conv-adapter", "ssf", "film", "bias", "head")),
    )
}
PAIRS = tuple(MAP_WAYS)[:11]
"""The ways that run first: M, what people train, and both."""
KEEPING = (*UNDRAWN, "ssf")
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
    whole = load_halves(recipe.dataset, data, held_out)
    then_all = trial.way.removesuffix(CURVED) == "full-then-all"
    return run_in_memory(recipe, trial.rates, whole, data, then_all)


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
    memory = start_run(recipe, load_halves(recipe.dataset, data, False), data)
    fit_groups(memory, (), range(memory.run.recipe.steps))
    return int(score_in_memory(memory, memory.task.dataset.train).sum())


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


MAP_CELLS = tuple(map_cell(change, labels) for labels in LABELS for change in CHANGES)
TRAINED_WAYS = tuple(way for way, spec in MAP_WAYS.items() if spec.rates)
MAP = Study(
    name="adapt-map",
    title="What M adds: a map of adaptation (ResNet-20 of CIFAR-10)",
    note=(
        "A fixed half of the 10,000 test images, seen by no backbone, gives labels and held-out "
        "images; accuracies are on the other half. Rates were chosen for each way and number of "
        f"labels under {', '.join(RATE_CHANGES)}, on images held out, or are by curvature on a "
        "run's labelled images; none saw a scored image. M with a way takes M's rate and that "
        "way's. A cell's networks normalise by running statistics of the new images or by the "
        "backbone's: by those with which the untrained network classifies more of the labelled "
        "images of all draws; SSF keeps the backbone's."
    ),
    ways=MAP_WAYS,
    stages=(PAIRS, tuple(way for way in MAP_WAYS if way not in PAIRS)),
    cells=MAP_CELLS,
    run_trial=run_map_trial,
    begin=choose_statistics,
    terms=backbone_terms,
    columns=(Column("chosen"), Column("by curvature", TRAINED_WAYS)),
    folder="adapt-map/unseen",
)

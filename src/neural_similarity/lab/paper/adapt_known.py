"""Known changes: M from the geometry, without a training image, beside changing images back."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neural_similarity.lab.paper.adapt_map import CHANGES, MapRun, trial_recipe
from neural_similarity.lab.paper.adapt_report import UNDONE_LABEL
from neural_similarity.lab.paper.adapt_runs import run_facts, starting_network, whole_images
from neural_similarity.lab.paper.adapt_study import Study, StudyCell
from neural_similarity.lab.recipes.adaptation import WAYS
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.train import evaluate_model
from neural_similarity.nn import Affine, Static

KNOWN: Mapping[str, tuple[Affine, float]] = {
    **{f"rotation-{each}": (Affine("angle", tied=True), each / 90) for each in (15, 30, 45, 90)},
    **{f"zoom-{each}": (Affine("scale", tied=True), 1 / each - 1) for each in (0.75, 1.33)},
}
"""The structure that moves kernels as a change moves images, and its number."""
KNOWN_LABELS = {
    "full": "M from the geometry",
    "undone": UNDONE_LABEL,
    "nothing": WAYS["nothing"][0],
}


def known_recipe(trial: MapRun) -> AdaptationRecipe:
    """The recipe of a network that does not train, or in which M alone would."""
    if trial.way != "full":
        return trial_recipe(trial, labels=10)
    recipe = trial_recipe(trial._replace(way="nothing"), labels=10)
    return replace(recipe, similarity=Static(KNOWN[trial.change][0]), train="M")


@torch.no_grad()
def score_known(trial: MapRun, data: Path, _: bool) -> dict[str, Any]:
    """Score the network, with M from the geometry, or on images that are changed back."""
    recipe = known_recipe(trial)
    whole = whole_images(recipe.dataset, data)
    network, run, runtime = starting_network(recipe, whole, data)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.fill_(KNOWN[trial.change][1])
    network.requires_grad_(False)  # Nothing trains.
    return run_facts(
        network, run, evaluate_model(network, whole.test, run.preprocess, runtime).correct
    )


KNOWN_CHANGES = Study(
    name="adapt-known",
    title="M from a known change",
    note=(
        "ResNet-20 on CIFAR-10's 10,000 test images, changed. Nothing is trained: every kernel is "
        "moved as the images are, by `ns.Affine` with the change's own number."
    ),
    labels=KNOWN_LABELS,
    cells=tuple(
        StudyCell(CHANGES[change], (change,), (0,), dict.fromkeys(KNOWN_LABELS)) for change in KNOWN
    ),
    run_trial=score_known,
    size=("trained", lambda _, run: f"{run['trained']:,}"),
)

"""Adaptation of CIFAR-10's ResNet-20 without labels: along a stream, or by a known geometry.

On a stream the entropy of answers falls, as in TENT (Wang et al., ICLR 2021, arXiv:2006.10726):
batches are normalised by their own statistics, every batch is one step of Adam, and the pass that
gives the gradient gives the answers. A stream begins at the pretrained network.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from neural_similarity.lab.data import Images
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.nn import Affine, Static
from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    RATE_CHANGES,
    MapRun,
    RateSearch,
    trial_recipe,
)
from neural_similarity_paper.studies.adapt_report import UNDONE_LABEL
from neural_similarity_paper.studies.adapt_runs import (
    cpu_runtime,
    load_images,
    run_facts,
    score_in_memory,
    start_in_memory,
)
from neural_similarity_paper.studies.adapt_study import Study, StudyCell

STREAM_ORDERS = {"iid": "i.i.d.", "by-class": "by class"}
STREAM_BATCHES = (200, 16)
ADAM_RATES = (3e-4, 1e-3, 3e-3)
"""Where the choice of a rate of Adam's begins."""
STREAM_IMAGES = 5_000
"""Test images of a stream; one on which rates are chosen has all images held out."""


def stream_cell(change: str, order: str, batch: int) -> StudyCell:
    """A stream; rates of a size of batches are chosen on streams without an order."""
    streams = tuple(f"{other}/iid/{batch}" for other in RATE_CHANGES)
    search = RateSearch(streams, (11,), ADAM_RATES)
    label = f"{CHANGES[change]}, {STREAM_ORDERS[order]}, batches of {batch}"
    searches = {"full": search, "norm": search, "statistics": None}
    return StudyCell(label, (f"{change}/{order}/{batch}",), (1,), searches)


def stream_positions(labels: Tensor, order: str, draw: int) -> Tensor:
    """Positions of a stream's images: shuffled, and then sorted by class if the order is so."""
    shuffled = torch.randperm(len(labels), generator=seeded_generator("stream", draw))
    shuffled = shuffled[:STREAM_IMAGES]
    return shuffled if order == "iid" else shuffled[labels[shuffled].argsort(stable=True)]


def run_stream(trial: MapRun, data: Path, held_out: bool) -> dict[str, Any]:
    """Answer a stream's images, batch by batch, and adapt to each."""
    change, order, size = trial.change.split("/")
    recipe = trial_recipe(trial._replace(change=change), labels=10)
    whole = load_images(recipe.dataset, data, held_out)
    _, run, state = start_in_memory(recipe, whole, data)
    runtime = cpu_runtime().for_scores()  # The pass that gives the gradient is scored.
    network = state.model.train()
    test, trained = cast(Images, whole.test), [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, trial.rate) if trained else None
    correct = []
    for batch in stream_positions(test.labels, order, trial.draw).split(int(size)):
        with torch.set_grad_enabled(bool(trained)), runtime.autocast():
            logits = network(runtime.place_images(run.preprocess(test.pixels[batch])))
        if optimizer is not None:
            optimizer.zero_grad()
            torch.distributions.Categorical(logits=logits.float()).entropy().mean().backward()
            optimizer.step()
        correct.append(logits.argmax(1) == test.labels[batch])
    return run_facts(network, run, torch.cat(correct))


STREAM = Study(
    name="adapt-stream",
    title="Adaptation without labels",
    note=(
        f"ResNet-20 of CIFAR-10 on streams of {STREAM_IMAGES:,} test images; a batch is answered "
        "before it adapts the network. Rates of Adam's were chosen for each way and size of "
        f"batches, by labels, on streams of 2,000 training images under {', '.join(RATE_CHANGES)}."
    ),
    labels={
        "full": "static full M by entropy",
        "norm": "batch normalisation by entropy (TENT)",
        "statistics": "statistics of the batch alone",
    },
    cells=tuple(
        stream_cell(change, order, batch)
        for change in CHANGES
        for batch in STREAM_BATCHES
        for order in STREAM_ORDERS
    ),
    run_trial=run_stream,
)

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


@torch.no_grad()
def score_known(trial: MapRun, data: Path, held_out: bool = False) -> dict[str, Any]:
    """Score the network, with M from the geometry, or on images that are changed back."""
    way = "nothing" if trial.way == "full" else trial.way
    recipe = trial_recipe(trial._replace(way=way), labels=10)
    if trial.way == "full":
        recipe = replace(recipe, similarity=Static(KNOWN[trial.change][0]), train="M")
    whole = load_images(recipe.dataset, data, held_out)
    _, run, state = start_in_memory(recipe, whole, data)
    for parameter in state.model.parameters():
        if parameter.requires_grad:
            parameter.fill_(KNOWN[trial.change][1]).requires_grad_(False)
    return run_facts(state.model, run, score_in_memory(state.model, run, whole.test))


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
)

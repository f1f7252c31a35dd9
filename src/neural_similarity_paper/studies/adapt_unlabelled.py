"""Adaptation of CIFAR-10's ResNet-20 without labels: along a stream, or by a known geometry.

On a stream the entropy of answers falls, as in TENT (Wang et al., ICLR 2021, arXiv:2006.10726):
every batch is one step of Adam, and the pass that gives the gradient gives the answers. Batches are
normalised by their own statistics, or by running ones that each batch has moved before its answers.
A stream begins at the pretrained network.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Categorical

from neural_similarity.lab.data import Images, load_dataset
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.nn import Affine, Static
from neural_similarity_paper.studies.adapt_map import CHANGES, RATE_CHANGES, trial_recipe
from neural_similarity_paper.studies.adapt_study import Cell, Study, study_fields
from neural_similarity_paper.studies.adapt_training import (
    MemoryRun,
    backbone_terms,
    fix_trained,
    load_halves,
)
from neural_similarity_paper.studies.trials import SearchPlace, Trial, cpu_runtime

STREAM_ORDERS = {"iid": "i.i.d.", "by-class": "by class"}
STREAM_BATCHES = (200, 16)
ADAM_RATES = (3e-4, 1e-3, 3e-3)
"""Where the choice of a rate of Adam's begins."""
STREAM_IMAGES = 5_000
"""Test images of a stream."""
RUNNING = "-running"
"""What the name of a way ends in that normalises by running statistics."""


def stream_cell(change: str, order: str, batch: int) -> Cell:
    """A stream; rates of a size of batches are chosen on streams without an order."""
    streams = tuple(f"{other}/iid/{batch}" for other in RATE_CHANGES)
    label = f"{CHANGES[change]}, {STREAM_ORDERS[order]}, batches of {batch}"
    name = f"{change}/{order}/{batch}"
    place = SearchPlace(streams, (11,), ADAM_RATES)
    return Cell(name, label, (name,), (1,), place, "streams", "rates")


def stream_positions(labels: Tensor, order: str, draw: int) -> Tensor:
    """Positions of a stream's images: shuffled, and then sorted by class if the order is so."""
    shuffled = torch.randperm(len(labels), generator=seeded_generator("stream", draw))
    shuffled = shuffled[:STREAM_IMAGES]
    return shuffled if order == "iid" else shuffled[labels[shuffled].argsort(stable=True)]


def run_stream(trial: Trial, data: Path, held_out: bool) -> dict[str, Any]:
    """Answer a stream's images, batch by batch, and adapt to each."""
    change, order, size = trial.change.split("/")
    way = trial.way.removesuffix(RUNNING)
    recipe = trial_recipe(trial._replace(change=change, way=way), labels=10)
    whole = load_halves(recipe.dataset, data, held_out)
    memory, test = MemoryRun.start(recipe, whole, data), cast(Images, whole.test)
    parts = memory.parameter_parts
    rates = zip(parts, trial.rates[: len(parts)], strict=True)
    groups = [{"params": part, "lr": rate} for part, rate in rates]
    optimizer = torch.optim.Adam(groups) if groups else None
    correct = []
    for batch in stream_positions(test.labels, order, trial.draw).split(int(size)):
        logits = _stream_logits(memory, test.pixels[batch], trial.way.endswith(RUNNING))
        if optimizer is not None:
            optimizer.zero_grad()
            Categorical(logits=logits.float()).entropy().mean().backward()
            optimizer.step()
        correct.append(logits.argmax(1) == test.labels[batch])
    return memory.facts(torch.cat(correct))


def _stream_logits(memory: MemoryRun, pixels: Tensor, running: bool) -> Tensor:
    """The answers to a batch, in float32: the pass that gives the gradient is scored."""
    runtime, network = cpu_runtime().for_scores(), memory.network.train()
    images = runtime.place_images(memory.run.preprocess(pixels))
    with runtime.autocast():
        if running:
            with torch.no_grad():
                network(images)  # Moves the running statistics.
            network.eval()
        return network(images)


STREAM_CELLS = tuple(
    stream_cell(change, order, batch)
    for change in CHANGES
    for batch in STREAM_BATCHES
    for order in STREAM_ORDERS
)
STREAM = Study(
    **study_fields("adapt-stream"), cells=STREAM_CELLS, run_trial=run_stream, terms=backbone_terms
)

KNOWN: Mapping[str, tuple[Affine, float]] = {
    **{f"rotation-{each}": (Affine("angle", tied=True), each / 90) for each in (15, 30, 45, 90)},
    **{f"zoom-{each}": (Affine("scale", tied=True), 1 / each - 1) for each in (0.75, 1.33)},
}
"""The structure that moves kernels as a change moves images, and its number."""


def score_known(trial: Trial, data: Path, held_out: bool = False) -> dict[str, Any]:
    """Score the network, with M from the geometry, or on images that are changed back."""
    del held_out
    way = "nothing" if trial.way == "full" else trial.way
    recipe = trial_recipe(trial._replace(way=way), labels=10)
    if trial.way == "full":
        recipe = replace(recipe, similarity=Static(KNOWN[trial.change][0]), train="M")
    memory = MemoryRun.start(recipe, load_dataset(recipe.dataset, root=data), data)
    fix_trained(memory.network, KNOWN[trial.change][1])
    return memory.facts()


KNOWN_CHANGES = Study(
    **study_fields("adapt-known"),
    cells=tuple(Cell(change, CHANGES[change], (change,), (0,)) for change in KNOWN),
    run_trial=score_known,
)

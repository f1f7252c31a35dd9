"""Adaptation without labels: the entropy of a network's answers falls along a stream of images.

TENT (Wang et al., ICLR 2021, arXiv:2006.10726): batches are normalised by their own statistics,
every batch is one step of Adam, and the pass that gives the gradient gives the answers. A stream
begins at the pretrained network.
"""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from neural_similarity.lab.data import Images
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.paper.adapt_map import (
    CHANGES,
    RATE_CHANGES,
    MapRun,
    RateSearch,
    trial_recipe,
)
from neural_similarity.lab.paper.adapt_runs import (
    held_out_images,
    run_facts,
    starting_network,
    whole_images,
)
from neural_similarity.lab.paper.adapt_study import Study, StudyCell

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
    whole = (held_out_images if held_out else whole_images)(recipe.dataset, data)
    network, run, runtime = starting_network(recipe, whole, data)
    test, trained = cast(Images, whole.test), [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, trial.rate) if trained else None
    correct = []
    for batch in stream_positions(test.labels, order, trial.draw).split(int(size)):
        with torch.set_grad_enabled(bool(trained)), runtime.autocast():
            logits = network.train()(runtime.place_images(run.preprocess(test.pixels[batch])))
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
    size=("trained", lambda _, run: f"{run['trained']:,}"),
)

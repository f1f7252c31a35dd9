"""Where a spatial adapter is the right shape: a deblurring network and other cameras.

A cell is a network, a camera and a number of image pairs. Every way trains on the same draws of
pairs for the same steps, at a rate of its own that is chosen on other cameras and images.
"""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.train.checkpoint import state_digest
from neural_similarity_paper.studies.adapt_study import Cell, Measure, Study
from neural_similarity_paper.studies.adapt_training import trained_numbers
from neural_similarity_paper.studies.rates import SearchPlace, Trial
from neural_similarity_paper.studies.reading import study_fields
from neural_similarity_paper.studies.restore_task import (
    BATCH,
    CAMERAS,
    PREPARATIONS,
    RATE_CAMERAS,
    STEPS,
    Deblurring,
    Pairs,
    load_sharp,
    observe,
    score_images,
    train_on,
    trained_network,
)

FOR_RATES = 100
"""Of the images that adaptations draw from, the last ones are for the choice of rates."""
SCORED_AT_ONCE = 10
"""Images that stay in the processor's cache: the same numbers in less than half of the time."""
INPUT = "input"
"""The way that is the camera's image."""
GROUPS = (
    *(("mini-imagenet", 24, 4), ("mini-imagenet", 64, 4), ("mini-imagenet", 24, 1)),
    *(("mini-imagenet", 24, 16), ("cifar10", 24, 4), ("cifar10", 24, 1), ("cifar10", 24, 16)),
    *(("mini-imagenet", 64, 1), ("mini-imagenet", 64, 16)),
)
"""Data, channels and pairs in the order in which they run."""


@lru_cache(maxsize=2)
def load_backbone(dataset: str, width: int, data: Path) -> tuple[Deblurring, dict[str, Tensor]]:
    """The network that is adapted, and sharp images by part."""
    sharp = load_sharp(dataset, data)
    path = Path("runs") / RESTORE.name / f"{dataset}-{width}.pt"
    return trained_network(width, sharp, path), sharp


def restore_terms(cell: Cell, data: Path) -> dict[str, Any]:
    """The digests of a cell's network and images."""
    network, sharp = load_backbone(cell.facts["dataset"], cell.facts["width"], data)
    return {"backbone": state_digest(network.state_dict()), "data": state_digest(sharp)}


def run_trial(trial: Trial, data: Path, held_out: bool) -> dict[str, Any]:
    """The ratios of images in dB, 0 where the network diverged, and how many numbers train."""
    restored, scored, trained = restore_images(trial, data, held_out)
    ratios = score_images(restored, scored.sharp).nan_to_num(nan=0.0)
    images = [round(ratio, 3) for ratio in ratios.tolist()]
    return {"psnr": fmean(images), "trained": trained, "images": images}


def restore_images(trial: Trial, data: Path, held_out: bool) -> tuple[Tensor, Pairs, int]:
    """Test or held-out images, restored by an adapted copy of the network; how many numbers train.

    Returns:
        Restored images, observed and sharp ones, numbers.
    """
    dataset, width, count, name = trial.change.split("/")
    backbone, sharp = load_backbone(dataset, int(width), data)
    camera = (CAMERAS | RATE_CAMERAS)[name]
    scored = observe(sharp["held_out" if held_out else "test"], camera, 0)
    if trial.way == INPUT:
        return scored.observed, scored, 0
    network = deepcopy(backbone)
    torch.manual_seed(trial.draw)
    PREPARATIONS[trial.way](network)
    if trained := trained_numbers(network):
        images = sharp["draws"]
        images = images[-FOR_RATES:] if held_out else images[:-FOR_RATES]
        order = torch.randperm(len(images), generator=seeded_generator("restore-draw", trial.draw))
        pairs = observe(images[order[: int(count)]], camera, 1, trial.draw)
        train_on(network, pairs, BATCH, STEPS, trial.rates[0], trial.draw)
    with torch.no_grad():
        restored = [network(part) for part in scored.observed.split(SCORED_AT_ONCE)]
    return torch.cat(restored), scored, trained


def restore_cell(dataset: str, width: int, pairs: int, camera: str) -> Cell:
    """A camera's images for a network."""
    group, place = f"{dataset}-{width}-{pairs}", f"{dataset}/{width}/{pairs}"
    search = (tuple(f"{place}/{other}" for other in RATE_CAMERAS), (11, 12), (1e-3, 3e-3, 0.01))
    return Cell(
        f"{group}-{camera}",
        f"{CAMERAS[camera].label}; {dataset}, {width} channels, {pairs} pair{'s' * (pairs > 1)}",
        (f"{place}/{camera}",),
        (1, 2, 3, 4, 5),
        SearchPlace(*search),
        group,
        f"{group}-rates",
        () if camera == "turned-90" else ("turned",),
        {"dataset": dataset, "width": width},
    )


RESTORE = Study(
    **study_fields("adapt-restore"),
    cells=tuple(restore_cell(*group, camera) for group in GROUPS for camera in CAMERAS),
    run_trial=run_trial,
    terms=restore_terms,
    measure=Measure("ratio, dB", "dB", 1.0, "images", {"psnr": float | int, "trained": int}),
)

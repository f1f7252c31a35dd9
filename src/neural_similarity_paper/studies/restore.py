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
from neural_similarity_paper.studies.adapt_study import Cell, Study, Unit, Way
from neural_similarity_paper.studies.rates import SearchPlace, Trial
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
from neural_similarity_paper.studies.sheets import Sheet

FOR_RATES = 100
"""Of the images that adaptations draw from, the last ones are for the choice of rates."""
INPUT, UNTRAINED = "input", ("nothing", "turned")
GROUPS = (
    *(("mini-imagenet", 24, 4), ("mini-imagenet", 64, 4), ("mini-imagenet", 24, 1)),
    *(("mini-imagenet", 24, 16), ("cifar10", 24, 4), ("cifar10", 24, 1), ("cifar10", 24, 16)),
    *(("mini-imagenet", 64, 1), ("mini-imagenet", 64, 16)),
)
"""Data, channels and pairs in the order in which they run."""


@lru_cache(maxsize=2)
def _backbone(dataset: str, width: int, data: Path) -> tuple[Deblurring, dict[str, Tensor]]:
    sharp = load_sharp(dataset, data)
    path = Path("runs") / RESTORE.name / f"{dataset}-{width}.pt"
    return trained_network(width, sharp, path), sharp


def check_digests(sheet: Sheet, cell: Cell, data: Path) -> None:
    """Add the digests of a cell's network and data to its sheet.

    Raises:
        ValueError: its runs are of others.
    """
    network, sharp = _backbone(cell.facts["dataset"], cell.facts["width"], data)
    digests = {
        "backbone": digest_of_tensors(network.state_dict()),
        "data": digest_of_tensors(sharp),
    }
    for name, digest in digests.items():
        if sheet.facts.setdefault(name, digest) != digest:
            raise ValueError(f"{sheet.path} is of another {name}, {sheet.facts[name]!r}")


def run_trial(trial: Trial, data: Path, held_out: bool) -> dict[str, Any]:
    """Adapt a copy of the network, and score it on test or held-out images."""
    dataset, width, pairs, camera = trial.change.split("/")
    backbone, sharp = _backbone(dataset, int(width), data)
    return adapt_and_score(
        backbone, sharp, trial._replace(change=camera), int(pairs), held_out=held_out
    )


def adapt_and_score(
    backbone: Deblurring, sharp: dict[str, Tensor], trial: Trial, count: int, *, held_out: bool
) -> dict[str, Any]:
    """What a run with `count` pairs keeps: the images' ratios in dB, and how many numbers train."""
    camera = (CAMERAS | RATE_CAMERAS)[trial.change]
    scored = observe(sharp["held_out" if held_out else "test"], camera, 0)
    network, trained = deepcopy(backbone), 0
    if trial.way != INPUT:
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
        restored = scored.observed if trial.way == INPUT else network(scored.observed)
    ratios = score_images(restored, scored.sharp).nan_to_num(nan=0.0)  # NaN where it diverged.
    images = [round(ratio, 3) for ratio in ratios.tolist()]
    return {"psnr": fmean(images), "trained": trained, "images": images}


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


_RESTORE_WAYS = {
    way: Way(label, () if way in UNTRAINED else (way,), "", way not in UNTRAINED)
    for way, (label, _) in WAYS.items()
} | {INPUT: Way("the camera's image", every_draw=False)}
_RESTORE_WAYS["m-all"] = _RESTORE_WAYS["m-all"]._replace(alone="all")
RESTORE = Study(
    name="adapt-restore",
    title="Deblurring: other cameras",
    note=(
        "Peak signal-to-noise ratio in dB of 100 test images. A network of six 3×3 convolutions "
        "that undoes one motion blur adapts to another camera with pairs of its images and sharp "
        f"ones: {STEPS} steps of Adam on {BATCH} crops, in float32. The rate of every way is "
        "chosen for each network and number of pairs on other cameras and other images. A cell "
        "where no way that trains beats the camera's own image ranks nothing."
    ),
    ways=_RESTORE_WAYS,
    stages=(tuple(_RESTORE_WAYS),),
    cells=tuple(restore_cell(*group, camera) for group in GROUPS for camera in CAMERAS),
    run_trial=run_trial,
    begin=check_digests,
    answers="images",
    unit=Unit("ratio, dB", "dB", 1.0),
    fields={"psnr": float | int, "trained": int},
    floor=INPUT,
)

"""Where a spatial adapter is the right shape: a deblurring network and other cameras.

A sharp grey image x becomes k * x + n with a blur k and normal noise n. A small network is trained
for one camera, and adapts to others with pairs of a camera's image and the sharp one. A cell is a
network, a camera and a number of pairs. Every way trains on the same draws of pairs for the same
steps, at a rate of its own that is chosen on other cameras and images.
"""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.files import new_file
from neural_similarity.lab.data import load_dataset
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.data.splits import load_split
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe, adapt_network
from neural_similarity.lab.train.checkpoint import state_digest
from neural_similarity_paper.recipes.reading import setting_fields
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.adapt_study import Cell, ScoreKind, Study, study_fields
from neural_similarity_paper.studies.adapt_training import fix_trained, trained_numbers
from neural_similarity_paper.studies.trials import SearchPlace, Trial

NOISE = 2
"""Grey levels of the usual noise."""
MARGIN = 6
"""Pixels cut off at each border, where the blurs mix in what was mirrored there."""
CROP, BATCH, STEPS = 40, 4, 100
"""Side and number of the crops of a step, and steps of an adaptation."""
PRETRAINING = {"batch": 8, "steps": 4_000, "rate": 2e-3}
IMAGE_COUNTS, HELD_OUT = (4_000, 464, 100), 64
"""Images that train the network, that adaptations draw from or rates score, the last ones, and that
tables score."""


class Camera(NamedTuple):
    """How sharp images are observed."""

    label: str
    kernel: Tensor
    noise: float
    pitch: float
    """Side of a pixel; 1 in training."""


def motion_blur(length: float, degrees: float = 0.0) -> Tensor:
    """(k, k), a line of this length at this angle, counterclockwise, spread bilinearly."""
    places = torch.linspace(-0.5, 0.5, 64 * math.ceil(length)) * (length - 1)
    radius = math.ceil((length - 1) / 2)
    grid = torch.arange(-radius, radius + 1.0)[:, None]
    angle = math.radians(degrees)
    columns = (1 - (grid - places * math.cos(angle)).abs()).relu()
    rows = (1 - (grid + places * math.sin(angle)).abs()).relu()
    return rows @ columns.T / len(places)


def gaussian_blur(deviation: float) -> Tensor:
    """(k, k), cut off at three deviations."""
    radius = math.ceil(3 * deviation)
    line = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / deviation) ** 2)
    return line[:, None] * line / line.sum() ** 2


def disk_blur(radius: float) -> Tensor:
    """(k, k), a disk out of focus, its edge softened over a pixel."""
    line = torch.arange(-math.ceil(radius), math.ceil(radius) + 1.0)
    inside = (radius + 0.5 - torch.hypot(line[:, None], line)).clamp(0, 1)
    return inside / inside.sum()


BLURS = {"motion": motion_blur, "gaussian": gaussian_blur, "disk": disk_blur}


def read_cameras(entry: str) -> dict[str, Camera]:
    """The cameras of an entry of `studies.toml`, whose blurs are in pixels of the scene."""
    cameras = {}
    for name, fields in STUDY_ENTRIES["adapt-restore"][entry].items():
        pitch, noise = fields.get("pitch", 1.0), fields.get("noise", NOISE) / 255
        ((size, *rest), blur) = next((fields[k], f) for k, f in BLURS.items() if k in fields)
        cameras[name] = Camera(fields["label"], blur(size / pitch, *rest), noise, pitch)
    return cameras


(TRAINED_FOR,) = read_cameras("trained_for").values()
CAMERAS, RATE_CAMERAS = read_cameras("cameras"), read_cameras("rate_cameras")
"""Cameras of the study, and those on which rates are chosen."""


class Deblurring(nn.Module):
    """x plus six 3x3 convolutions of it, with rectifiers between.

    Channels come last in memory, which makes an adaptation a quarter faster on a CPU.
    """

    def __init__(self, width: int):
        super().__init__()
        sides = pairwise((1, *(width,) * 5, 1))
        self.layers = nn.ModuleList(nn.Conv2d(*side, 3, padding=1) for side in sides)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """The sharp images (n, 1, h, w) of blurred ones."""
        y = x
        for layer in self.layers[:-1]:
            y = layer(y).relu()
        return x + self.layers[-1](y)


class Pairs(NamedTuple):
    """Images of a camera and sharp ones, both (n, 1, h, w) from 0 to 1."""

    observed: Tensor
    sharp: Tensor


def load_sharp(dataset: str, data: Path) -> dict[str, Tensor]:
    """Sharp grey images by part; classes of Mini-ImageNet's parts differ, images of CIFAR-10's."""
    if dataset == "cifar10":
        whole = load_dataset(dataset, root=data)
        half = len(whole.train) // 2
        pixels = *whole.train.head(2 * half).split(half), whole.test.head(len(whole.test))
    else:
        split = load_split(dataset, data)
        pixels = split.train.pixels, split.val.pixels, split.test.pixels
    train, others, test = (
        part[order[:count]].float().mean(1, keepdim=True) / 255
        for at, (part, count) in enumerate(zip(pixels, IMAGE_COUNTS, strict=True))
        for order in [torch.randperm(len(part), generator=seeded_generator("restore", at))]
    )
    draws, held_out = others[:-HELD_OUT], others[-HELD_OUT:]
    return {"train": train, "draws": draws, "held_out": held_out, "test": test}


def observe(sharp: Tensor, camera: Camera, *seeds: int) -> Pairs:
    """Pairs of sharp images under a camera; `seeds` choose the noise."""
    if camera.pitch != 1:
        side = round(sharp.shape[-1] / camera.pitch)
        sharp = F.interpolate(sharp, (side, side), mode="bilinear", antialias=True)
    reach = camera.kernel.shape[0] // 2
    blurred = F.conv2d(F.pad(sharp, (reach,) * 4, mode="reflect"), camera.kernel[None, None])
    noise = torch.randn(blurred.shape, generator=seeded_generator("restore-noise", *seeds))
    inner = ..., slice(MARGIN, -MARGIN), slice(MARGIN, -MARGIN)
    return Pairs((blurred + camera.noise * noise)[inner], sharp[inner])


def train_on(
    network: nn.Module, pairs: Pairs, batch: int, steps: int, rate: float, seed: int
) -> None:
    """Train what requires gradients by the squared error: Adam, its rate falling to zero."""
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for crops in _random_crops(pairs, batch, steps, seed):
        loss = F.mse_loss(network(crops.observed), crops.sharp)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _random_crops(pairs: Pairs, batch: int, steps: int, seed: int) -> Iterator[Pairs]:
    count, _, *sides = pairs.sharp.shape
    crop, random = min(CROP, *sides), seeded_generator("restore-crops", seed)
    for _ in range(steps):
        places = [
            torch.randint(0, limit, (batch,), generator=random).tolist()
            for limit in (count, sides[0] - crop + 1, sides[1] - crop + 1)
        ]
        corners = list(zip(*places, strict=True))
        cuts = [
            torch.stack([part[at, :, y : y + crop, x : x + crop] for at, y, x in corners])
            for part in pairs
        ]
        yield Pairs(*cuts)


@torch.no_grad()
def score_images(restored: Tensor, sharp: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every image in dB, for a peak of 1."""
    return -10 * (restored.clamp(0, 1) - sharp).square().mean((1, 2, 3)).log10()


def trained_network(width: int, sharp: Mapping[str, Tensor], path: Path) -> Deblurring:
    """The network that is adapted, from its file, or trained and written there."""
    torch.manual_seed(0)
    network = Deblurring(width)
    if not path.exists():
        train_on(network, observe(sharp["train"], TRAINED_FOR, 0), seed=0, **PRETRAINING)
        with new_file(path) as file:
            torch.save(network.state_dict(), file)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network


def prepare_network(network: Deblurring, way: str) -> None:
    """Add what a way adds, in place, and freeze the rest; outputs stay but for rotated kernels."""
    content = STUDY_ENTRIES["adapt-restore"]["ways"][way]
    adapt_network(network, AdaptationRecipe(**setting_fields(content["network"])))
    if content.get("shared"):
        for layer in network.layers[1:]:
            layer.similarity = network.layers[0].similarity
    if "right_angles" in content:  # Kernels are rotated counterclockwise.
        fix_trained(network, content["right_angles"])


FOR_RATES = 100
"""Of the images that adaptations draw from, the last ones are for the choice of rates."""
SCORED_AT_ONCE = 10
"""Images that stay in the processor's cache: the same numbers in less than half of the time."""
INPUT = "input"
"""The way that is the camera's image."""
DATA_WIDTH_PAIRS = (
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
    prepare_network(network, trial.way)
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
    cells=tuple(restore_cell(*group, camera) for group in DATA_WIDTH_PAIRS for camera in CAMERAS),
    run_trial=run_trial,
    terms=restore_terms,
    measure=ScoreKind("ratio, dB", "dB", 1.0, "images", {"psnr": float | int, "trained": int}),
)

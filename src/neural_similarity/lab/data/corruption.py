"""Corrupted data sets: noise, blur or rotation of every image, each in two strengths.

Corruptions of our own, not those of CIFAR-10-C; training and test images get the same.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.lab.data.images import Dataset, Images, seeded_generator

AT_ONCE = 1_000
"""Images that are changed at a time, so that intermediate results stay small."""
Change = Callable[[Tensor, torch.Generator], Tensor]


def add_noise(x: Tensor, random: torch.Generator, deviation: float) -> Tensor:
    """x (n, c, h, w), 0 to 255, with normal noise of this deviation at every number."""
    return x + deviation * torch.randn(x.shape, generator=random)


def blur_images(x: Tensor, _: torch.Generator, deviation: float) -> Tensor:
    """x (n, c, h, w) under a Gaussian of this deviation in pixels, cut off at three of them.

    Images are mirrored at their border.
    """
    radius = math.ceil(3 * deviation)
    line = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / deviation) ** 2)
    kernel = (line / line.sum()).expand(x.shape[1], 1, 1, -1)
    channels = x.shape[1]
    x = F.conv2d(F.pad(x, (radius, radius, 0, 0), mode="reflect"), kernel, groups=channels)
    return F.conv2d(F.pad(x, (0, 0, radius, radius), mode="reflect"), kernel.mT, groups=channels)


def rotate_images(x: Tensor, _: torch.Generator, degrees: float) -> Tensor:
    """x (n, c, h, w), square, turned to the left; between pixels bilinear, black outside.

    Whole right angles are `torch.rot90`.
    """
    if degrees % 90 == 0:
        return x.rot90(int(degrees) // 90, (2, 3))
    cosine, sine = (f(math.radians(degrees)) for f in (math.cos, math.sin))
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    grid = F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


CORRUPTIONS: dict[str, Change] = {
    "noise-25": partial(add_noise, deviation=25),
    "noise-50": partial(add_noise, deviation=50),
    "blur-1": partial(blur_images, deviation=1),
    "blur-2": partial(blur_images, deviation=2),
    "rotation-30": partial(rotate_images, degrees=30),
    "rotation-90": partial(rotate_images, degrees=90),
}
"""By name: deviation in grey levels, in pixels, degrees."""


def corrupt_dataset(dataset: Dataset, name: str) -> Dataset:
    """A data set in memory with all its images changed; the noise depends on the part alone."""
    train, test = (
        _change_images(cast(Images, part), CORRUPTIONS[name], seeded_generator(name, seed))
        for seed, part in enumerate((dataset.train, dataset.test))
    )
    return replace(dataset, name=f"{dataset.name}-{name}", train=train, test=test)


def _change_images(images: Images, change: Change, random: torch.Generator) -> Images:
    pixels = [
        change(chunk.float(), random).round().clamp(0, 255).to(torch.uint8)
        for chunk in images.chunks(AT_ONCE)
    ]
    return replace(images, pixels=torch.cat(pixels).contiguous())

"""Corrupted data sets: one photometric or geometric change of every image.

Corruptions of our own, not those of CIFAR-10-C; training and test images get the same. Geometric
ones also exist undone: the changed images, changed back, as by a user who knows the camera. The
entry point `neural_similarity.datasets` names this module: CIFAR-10 is a data set under each.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.lab.data.cifar import CIFAR10, load_cifar
from neural_similarity.lab.data.images import Dataset, Images, seeded_generator
from neural_similarity.lab.data.registry import LOADERS

CHANGED_AT_ONCE = 1_000
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


def reduce_contrast(x: Tensor, _: torch.Generator, factor: float) -> Tensor:
    """x (n, c, h, w) with differences to each image's mean grey level times `factor`."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def halve_resolution(x: Tensor, _: torch.Generator) -> Tensor:
    """x (n, c, h, w) in squares of 2x2 pixels, averaged, and enlarged again bilinearly."""
    return F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear")


def rotate_images(x: Tensor, _: torch.Generator, degrees: float) -> Tensor:
    """x (n, c, h, w), square, rotated counterclockwise; between pixels bilinear, black outside.

    Whole right angles are `torch.rot90`.
    """
    if degrees % 90 == 0:
        return x.rot90(int(degrees) // 90, (2, 3))
    cosine, sine = (f(math.radians(degrees)) for f in (math.cos, math.sin))
    return map_linearly(x, _, ((cosine, -sine), (sine, cosine)))


MatrixRows = tuple[tuple[float, float], tuple[float, float]]


def map_linearly(x: Tensor, _: torch.Generator, rows: MatrixRows) -> Tensor:
    """x (n, c, h, w) with the value of x at A p at every p; bilinear, black outside.

    A is given by its rows; a point p is (right, down) from the centre, from -1 to 1.
    """
    matrix = torch.cat([torch.tensor(rows), torch.zeros(2, 1)], dim=1)
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def bend_images(x: Tensor, _: torch.Generator, strength: float, *, undo: bool = False) -> Tensor:
    """x (n, c, h, w) through a barrel lens: the value of x at p (1 + k |p|²) at every p.

    `undo` takes the value at the p whose image under the lens is there, by Newton's method.
    """
    eye = torch.eye(2, 3)[None]
    points = F.affine_grid(eye, [1, *x.shape[1:]], align_corners=False)
    radius = points.norm(dim=-1, keepdim=True)
    if undo:
        inner = radius
        for _step in range(8):
            bent = inner + strength * inner**3
            inner = inner - (bent - radius) / (1 + 3 * strength * inner**2)
        grid = points * inner / radius
    else:
        grid = points * (1 + strength * radius**2)
    grid = grid.expand(len(x), -1, -1, -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _zoom(factor: float) -> Change:
    """Things `factor` times as large."""
    return partial(map_linearly, rows=((1 / factor, 0.0), (0.0, 1 / factor)))


def _changed_back(change: Change, back: Change) -> Change:
    """A change and then another, on whole grey levels, as if the images had been stored."""

    def both(x: Tensor, random: torch.Generator) -> Tensor:
        return back(_grey_levels(change(x, random)).float(), random)

    return both


def _turn(degrees: float) -> Change:
    return partial(rotate_images, degrees=degrees)


_SHEAR, _BACK = (partial(map_linearly, rows=((1.0, k), (0.0, 1.0))) for k in (0.4, -0.4))
_LENS = partial(bend_images, strength=0.8)
GEOMETRY: dict[str, tuple[Change, Change]] = {
    **{f"rotation-{each}": (_turn(each), _turn(-each)) for each in (15, 20, 30, 45, 90)},
    **{f"zoom-{each}": (_zoom(each), _zoom(1 / each)) for each in (0.75, 1.15, 1.33)},
    "shear-0.4": (_SHEAR, _BACK),
    "lens-0.8": (_LENS, partial(_LENS, undo=True)),
}
"""Changes of place, and what undoes them: degrees, factors, slope, k of the lens."""
UNDONE = "-undone"
CORRUPTIONS: dict[str, Change] = {
    "noise-25": partial(add_noise, deviation=25),
    "noise-50": partial(add_noise, deviation=50),
    **{f"blur-{each}": partial(blur_images, deviation=each) for each in (1, 1.5, 2)},
    "contrast-0.2": partial(reduce_contrast, factor=0.2),
    "half-resolution": halve_resolution,
    **{name: change for name, (change, _) in GEOMETRY.items()},
    **{name + UNDONE: _changed_back(*both) for name, both in GEOMETRY.items()},
}
"""By name: deviation in grey levels or pixels, factor on differences of grey, and `GEOMETRY`."""


def corrupt_dataset(dataset: Dataset, name: str) -> Dataset:
    """A data set in memory with all its images changed; the noise depends on the part alone."""
    change, parts = CORRUPTIONS[name], []
    for seed, images in enumerate((dataset.train, dataset.test)):
        chunks, random = cast(Images, images).chunks(CHANGED_AT_ONCE), seeded_generator(name, seed)
        pixels = torch.cat([_grey_levels(change(chunk.float(), random)) for chunk in chunks])
        parts.append(replace(cast(Images, images), pixels=pixels.contiguous()))
    return replace(dataset, name=f"{dataset.name}-{name}", train=parts[0], test=parts[1])


def _grey_levels(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


def _load_changed(change: str, root: Path) -> Dataset:
    return corrupt_dataset(load_cifar(CIFAR10, root), change)


LOADERS.update({f"cifar10-{change}": partial(_load_changed, change) for change in CORRUPTIONS})

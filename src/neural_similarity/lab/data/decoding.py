"""Image files as arrays."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import torch
from PIL import Image

AREAS, ASPECTS, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Of random windows: share of the image, width by height, and draws until the centre is taken."""
CENTRE = 224 / 256
"""Share of the shorter side that the central window of a test image has."""
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Header:
    """What an image file says of itself before its pixels are read; `size` is (width, height)."""

    path: Path
    mode: str
    size: tuple[int, int]


def read_header(path: Path) -> Header:
    """Mode and size of an image.

    Raises:
        ValueError: the file is no image, or its pixels have more than 8 bits.
    """
    with _opened(path) as image:
        header = Header(path, image.mode, image.size)
    _check_bits(header)
    return header


def read_pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Pixels, uint8 (c, h, w), of an image that is resized and cropped to (width, height) `size`.

    The image keeps its aspect: it is made as small as covers `size`, and its centre is kept.

    Raises:
        ValueError: the file is no image, or is damaged, or its pixels have more than 8 bits.
    """
    with _opened(path) as image:
        header = Header(path, image.mode, image.size)
        pixels = np.asarray(_fit(image.convert(mode), size))
    _check_bits(header)
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def read_random_window(path: Path, size: int, random: torch.Generator) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of a random window of an image, resized bilinearly to `size`.

    The window has 8 to 100 % of the image's area and 3/4 to 4/3 of its height for width: the usual
    training crop of ImageNet (Szegedy et al., https://arxiv.org/abs/1409.4842), torchvision's
    `RandomResizedCrop`.

    Raises:
        ValueError: the file is no image, or is damaged, or its pixels have more than 8 bits.
    """
    with _opened(path) as image:
        header = Header(path, image.mode, image.size)
        window = image.convert("RGB").crop(random_window(*image.size, random))
        pixels = np.asarray(window.resize((size, size), Image.Resampling.BILINEAR))
    _check_bits(header)
    return pixels


def read_centre(path: Path, size: int) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of the centre of an image: the usual test crop of ImageNet.

    The shorter side is resized bilinearly to 256/224 of `size`, as torchvision's `Resize` and
    `CenterCrop` do it.

    Raises:
        ValueError: the file is no image, or is damaged, or its pixels have more than 8 bits.
    """
    with _opened(path) as image:
        header = Header(path, image.mode, image.size)
        shorter = round(size / CENTRE)
        sides = [shorter * side // min(image.size) for side in image.size]
        left, top = (round((side - size) / 2) for side in sides)
        resized = image.convert("RGB").resize((sides[0], sides[1]), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized.crop((left, top, left + size, top + size)))
    _check_bits(header)
    return pixels


def random_window(width: int, height: int, random: torch.Generator) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random window of an image, see `read_random_window`."""
    for _ in range(ATTEMPTS):
        area = width * height * _uniform(*AREAS, random)
        aspect = exp(_uniform(log(ASPECTS[0]), log(ASPECTS[1]), random))
        columns, rows = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            top = int(torch.randint(height - rows + 1, (1,), generator=random))
            left = int(torch.randint(width - columns + 1, (1,), generator=random))
            return left, top, left + columns, top + rows
    columns = min(width, round(height * ASPECTS[1]))
    rows = min(height, round(width / ASPECTS[0]))
    left, top = (width - columns) // 2, (height - rows) // 2
    return left, top, left + columns, top + rows


def _check_bits(header: Header) -> None:
    if header.mode.startswith(("I", "F")):
        raise ValueError(f"{header.path} must have 8 bits per channel, got the mode {header.mode}")


def _uniform(low: float, high: float, random: torch.Generator) -> float:
    return torch.empty(1).uniform_(low, high, generator=random).item()


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if image.size == size:
        return image
    factor = max(size[0] / image.width, size[1] / image.height)
    width, height = (round(side * factor) for side in image.size)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size[0], top + size[1]))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble on
        raise ValueError(f"{path} must be an image, but cannot be read: {error}") from error

"""Decoding image files into arrays: upright, and on white where they are transparent."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps

AREAS, ASPECTS, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Of random windows: share of the image, width by height, and draws until the centre is taken."""
CENTRE = 224 / 256
"""Share of the shorter side that the central window of a test image has."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats to decode, whatever the file name: others start programs (EPS) or are no images."""
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TURNED = (5, 6, 7, 8)
"""Values of the orientation of EXIF that swap width and height; Pillow does so in TIFF itself."""
MOST_PIXELS = 89_478_485
"""Pillow's own limit, a quarter of a GiB of colours; it only warns there."""
T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """An image before its pixels are read: "L" or "RGB", and (width, height) as displayed."""

    path: Path
    mode: str
    size: tuple[int, int]


def read_header(path: Path) -> Header:
    """Mode and size of an image.

    Raises:
        ValueError: the file is not an image, or its pixels have more than 8 bits.
    """

    def of(image: Image.Image) -> Header:
        turned = image.format != "TIFF" and image.getexif().get(ExifTags.Base.Orientation) in TURNED
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        width, height = image.size
        return Header(path, mode, (height, width) if turned else (width, height))

    return _opened(path, of)


def read_pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Pixels, uint8 (c, h, w), of an image that is resized and cropped to (width, height) `size`.

    The image keeps its aspect: it is made as small as covers `size`, and its centre is kept.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """
    pixels = _opened(path, lambda image: np.asarray(_fit(_seen(image, mode), size)))
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def read_random_window(path: Path, size: int, random: torch.Generator) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of a random window of an image, resized bilinearly to `size`.

    The window has 8 to 100 % of the image's area and 3/4 to 4/3 of its height for width: the usual
    training crop of ImageNet (Szegedy et al., https://arxiv.org/abs/1409.4842), torchvision's
    `RandomResizedCrop`.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """

    def of(image: Image.Image) -> np.ndarray:
        image = _seen(image, "RGB")
        return np.asarray(_resized(image.crop(random_window(*image.size, random)), (size, size)))

    return _opened(path, of)


def read_centre(path: Path, size: int) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of the centre of an image: the usual test crop of ImageNet.

    The shorter side is resized bilinearly to 256/224 of `size`, as torchvision's `Resize` and
    `CenterCrop` do it.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """

    def of(image: Image.Image) -> np.ndarray:
        shorter, image = round(size / CENTRE), _seen(image, "RGB")
        width, height = (shorter * side // min(image.size) for side in image.size)
        left, top = (round((side - size) / 2) for side in (width, height))
        resized = _resized(image, (width, height))
        return np.asarray(resized.crop((left, top, left + size, top + size)))

    return _opened(path, of)


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


def _uniform(low: float, high: float, random: torch.Generator) -> float:
    return torch.empty(1).uniform_(low, high, generator=random).item()


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if image.size == size:
        return image
    factor = max(size[0] / image.width, size[1] / image.height)
    width, height = (round(side * factor) for side in image.size)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    resized = _resized(image, (width, height))
    return resized.crop((left, top, left + size[0], top + size[1]))


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if size[0] * size[1] > MOST_PIXELS:
        raise ValueError(
            f"its {image.width}x{image.height} pixels would become {size[0]}x{size[1]}"
        )
    return image.resize(size, Image.Resampling.BILINEAR)


def _seen(image: Image.Image, mode: str) -> Image.Image:
    """An image as it is displayed, in a mode without transparency."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _opened(path: Path, work: Callable[[Image.Image], T]) -> T:
    """The result of `work` on the first frame of an image file."""
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path} must be an image, but is not a regular file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of sizes
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise ValueError(
                        f"it has {image.width}x{image.height} pixels, more than {MOST_PIXELS:,}"
                    )
                mode = image.mode
                if not mode.startswith(("I", "F")):
                    return work(image)
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble on
        raise ValueError(f"{path} must be an image, but cannot be read: {error}") from error
    raise ValueError(f"{path} must have 8 bits per channel, got the mode {mode}")

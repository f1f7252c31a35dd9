"""Image files as arrays."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

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
    if header.mode.startswith(("I", "F")):
        raise ValueError(f"{path} must have 8 bits per channel, got the mode {header.mode}")
    return header


def read_pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Pixels, uint8 (c, h, w), of an image that is resized and cropped to (width, height) `size`.

    The image keeps its aspect: it is made as small as covers `size`, and its centre is kept.

    Raises:
        ValueError: the file is no image, or is damaged.
    """
    with _opened(path) as image:
        pixels = np.asarray(_fit(image.convert(mode), size))
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


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

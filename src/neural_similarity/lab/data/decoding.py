"""Image files as arrays: upright, on white where they are transparent, resized by torchvision.

torchvision is imported when the first image is resized: importing it takes as long as torch.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps

AREAS, ASPECTS = (0.08, 1.0), (3 / 4, 4 / 3)
"""Of random windows: share of the image, and width by height."""
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

    def header_of(image: Image.Image) -> Header:
        turned = image.format != "TIFF" and image.getexif().get(ExifTags.Base.Orientation) in TURNED
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        width, height = image.size
        return Header(path, mode, (height, width) if turned else (width, height))

    return _open_image(path, header_of)


def read_pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Pixels, uint8 (c, h, w), of an image that is resized and cropped to (width, height) `size`.

    The image keeps its aspect: it is made as small as covers `size`, and its centre is kept.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """
    pixels = _open_image(path, lambda image: np.asarray(_cover(_upright(image, mode), size)))
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def read_random_window(path: Path, size: int, random: torch.Generator) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of a random window of an image, resized bilinearly to `size`.

    The window is that of torchvision's `RandomResizedCrop`, the usual training crop of ImageNet
    (Szegedy et al., https://arxiv.org/abs/1409.4842), which draws its numbers from `random`.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """
    from torchvision.transforms import RandomResizedCrop
    from torchvision.transforms.functional import resized_crop

    def window_of(image: Image.Image) -> np.ndarray:
        image = _upright(image, "RGB")
        # torchvision draws from torch's own generator, which has the state of ours meanwhile.
        with torch.random.fork_rng(devices=()):
            torch.default_generator.set_state(random.get_state())
            window = RandomResizedCrop.get_params(image, [*AREAS], [*ASPECTS])
            random.set_state(torch.default_generator.get_state())
        return np.asarray(resized_crop(image, *window, [size, size]))

    return _open_image(path, window_of)


def read_centre(path: Path, size: int) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of the centre of an image: the usual test crop of ImageNet.

    torchvision's `Resize` makes the shorter side 256/224 of `size`, its `CenterCrop` cuts.

    Raises:
        ValueError: the file is not an image, or is damaged, or its pixels have more than 8 bits.
    """
    from torchvision.transforms.functional import center_crop, resize

    def centre_of(image: Image.Image) -> np.ndarray:
        shorter = round(size / CENTRE)
        _check_resized(image, max(image.size) / min(image.size) * shorter**2)
        return np.asarray(center_crop(resize(_upright(image, "RGB"), [shorter]), [size, size]))

    return _open_image(path, centre_of)


def _cover(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The centre of an image that is as small as covers (width, height) `size`.

    torchvision rounds the longer side down; records are of images whose sides are rounded.
    """
    if image.size == size:
        return image
    factor = max(size[0] / image.width, size[1] / image.height)
    width, height = (round(side * factor) for side in image.size)
    _check_resized(image, width * height)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size[0], top + size[1]))


def _check_resized(image: Image.Image, pixels: float) -> None:
    """Refuse a long, thin image, which would fill the memory when it is enlarged."""
    if pixels > MOST_PIXELS:
        raise ValueError(f"its {image.width}x{image.height} pixels would become {int(pixels):,}")


def _upright(image: Image.Image, mode: str) -> Image.Image:
    """An image as it is displayed, in a mode without transparency."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _open_image(path: Path, work: Callable[[Image.Image], T]) -> T:
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

"""Image files as arrays: upright, on white where they are transparent, resized to fit.

Pillow resizes the images of folders, torchvision those of ImageNet, by its own protocol; it is
imported when the first of these is resized, as that takes as long as importing torch.
"""

import importlib
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from neural_similarity.files import open_file
from neural_similarity.lab.data.deep import DeepImage, Depth, deep_grey, deep_tiff
from neural_similarity.lab.data.files import ProgressCallback

CENTRE = 224 / 256
"""Share of the shorter side that the central window of a test image has."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats to decode, whatever the file name: others start programs (EPS) or are no images."""
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Those of torchvision's folders of images."""
TURNED = (5, 6, 7, 8)
"""Values of the orientation of EXIF that swap width and height; Pillow does so in TIFF itself."""
MOST_PIXELS = 178_956_970
"""Above this Pillow raises an error; it warns above half of it."""
DRAFT = 3
"""A draft is at least this many times as large as what it is resized to."""
_PILLOWS_ERRORS: dict[type, str] = {
    Image.DecompressionBombError: f"it has more than {MOST_PIXELS:,} pixels; scale it down",
    Image.UnidentifiedImageError: f"it is none of {', '.join(FORMATS)}",
}
"""Reasons in place of texts that call an image an attack, or show an open file."""
AHEAD = 2
"""Positions that each process works ahead."""
T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """An image before its pixels are read: "L", "RGB" or deep, and (width, height) as displayed."""

    path: Path
    mode: str | Depth
    size: tuple[int, int]
    paged: bool
    """Whether it has further pages or frames, which are not read."""


def read_header(path: Path) -> Header:
    """Mode and size of an image."""

    def header_of(image: Image.Image) -> Header:
        turned = image.format != "TIFF" and image.getexif().get(ExifTags.Base.Orientation) in TURNED
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        width, height = image.size
        # The second image of an MPO, as phones write it, is a preview.
        paged = image.format != "MPO" and getattr(image, "is_animated", False)
        return Header(path, mode, (height, width) if turned else (width, height), paged)

    return _open_image(
        path, header_of, lambda image: Header(path, image.depth, image.size, image.paged)
    )


def read_pixels(
    path: Path, mode: str | Depth, size: tuple[int, int], *, draft: bool = False
) -> np.ndarray:
    """Pixels (c, h, w) of an image that is resized and cropped to (width, height) `size`.

    The image keeps its aspect: it is made as small as covers `size`, and its centre is kept. They
    are uint8, or int32 from 0 to 65535 for a mode of 16 bits.

    With `draft`, a JPEG file that is scaled down to a sixth or less is decoded at a half, a quarter
    or an eighth of its size, which is faster and changes its pixels a little.

    Raises:
        ValueError: the file is not an image, or is damaged, or is deep and of another mode.
    """

    def pixels_of(image: Image.Image) -> np.ndarray:
        if isinstance(mode, Depth):
            raise ValueError(f"it has the mode {image.mode}, not {mode} as the others")
        if draft:
            side = DRAFT * max(size)
            image.draft(None, (side, side))
        return np.asarray(_cover_size(_show_upright(image, mode), size))

    def deep_pixels(image: DeepImage) -> np.ndarray:
        if image.depth != mode:
            raise ValueError(f"it has {image.depth}, the others have the mode {mode}")
        return _cover_channels(image, size)

    pixels = _open_image(path, pixels_of, deep_pixels)
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def read_all_pixels(
    paths: Sequence[Path],
    mode: str | Depth,
    size: tuple[int, int],
    progress: ProgressCallback | None = None,
    *,
    draft: bool = False,
) -> Tensor:
    """Pixels (n, c, h, w) of all `paths`, each as `read_pixels` gives it."""
    width, height = size
    channels, bits = mode if isinstance(mode, Depth) else (1 if mode == "L" else 3, 8)
    dtype = np.uint8 if bits == 8 else np.int32
    pixels = np.empty((len(paths), channels, height, width), dtype)
    for index, path in enumerate(paths):
        pixels[index] = read_pixels(path, mode, size, draft=draft)
        if progress:
            progress(index + 1, len(paths))
    return torch.from_numpy(pixels)


def read_random_window(
    path: Path, size: int, random: torch.Generator, *, flip: bool = False
) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of a random window of an image, the training crop of ImageNet.

    torchvision's `RandomResizedCrop` (Szegedy et al., https://arxiv.org/abs/1409.4842), and its
    `RandomHorizontalFlip` for half of the images; both draw from `random`, whose state stays.
    """
    from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

    transform = Compose([RandomResizedCrop(size), RandomHorizontalFlip(0.5 if flip else 0.0)])

    def window_of(image: Image.Image) -> np.ndarray:
        image = _show_upright(image, "RGB")
        # torchvision draws from torch's own generator, which has our state for that long.
        with torch.random.fork_rng(devices=()):
            torch.default_generator.set_state(random.get_state())
            return np.asarray(transform(image))

    return _open_image(path, window_of)


def read_centre(path: Path, size: int) -> np.ndarray:
    """Pixels, uint8 (size, size, 3), of the centre of an image: the usual test crop of ImageNet.

    torchvision's `Resize` makes the shorter side `uncropped_side`, its `CenterCrop` cuts.
    """
    from torchvision.transforms import CenterCrop, Compose, Resize

    shorter = uncropped_side(size)
    transform = Compose([Resize(shorter), CenterCrop(size)])

    def centre_of(image: Image.Image) -> np.ndarray:
        _check_resized(image, max(image.size) / min(image.size) * shorter**2)
        return np.asarray(transform(_show_upright(image, "RGB")))

    return _open_image(path, centre_of)


def uncropped_side(size: int) -> int:
    """The shorter side of an image of ImageNet before its centre is cut to `size`."""
    return round(size / CENTRE)


def _cover_size(image: Image.Image, size: tuple[int, int]) -> Image.Image:
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


def _cover_channels(image: DeepImage, size: tuple[int, int]) -> np.ndarray:
    """`_cover_size` of every channel of a deep image: (h, w, c), uint8 or int32."""
    channels = np.moveaxis(image.read(), -1, 0).astype(np.float32)
    covered = [np.asarray(_cover_size(Image.fromarray(c), size)) for c in channels]
    return np.rint(np.stack(covered, -1)).astype(np.uint8 if image.depth.bits == 8 else np.int32)


def _check_resized(image: Image.Image, pixels: float) -> None:
    """Refuse a long, thin image, which would fill the memory when it is enlarged."""
    if pixels > MOST_PIXELS:
        raise ValueError(f"its {image.width}x{image.height} pixels would become {int(pixels):,}")


def _show_upright(image: Image.Image, mode: str) -> Image.Image:
    """An image as it is displayed, in a mode without transparency."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _open_image(
    path: Path,
    work: Callable[[Image.Image], T],
    work_deep: Callable[[DeepImage], T] | None = None,
) -> T:
    """The result of `work` on the first frame of an image file, or of `work_deep`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of sizes
            with open_file(path) as file:
                if work_deep and (deep := deep_tiff(file)):
                    _check_size(*deep.size)
                    return work_deep(deep)
                with Image.open(file, formats=FORMATS) as image:
                    _check_size(*image.size)
                    mode = image.mode
                    if work_deep and mode.startswith("I;16"):
                        return work_deep(deep_grey(image))
                    if not mode.startswith(("I", "F")):
                        return work(image)
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble on
        reason = _PILLOWS_ERRORS.get(type(error), error)
        raise ValueError(f"{path} must be an image, but cannot be read: {reason}") from error
    limit = "8 or 16 bits per channel" if work_deep else "8 bits per channel"
    raise ValueError(f"{path} must have {limit}, got the mode {mode}")


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Image.DecompressionBombError


def work_ahead(
    work: Callable[[int], Any], positions: Iterable[int], *, workers: int, pinned: bool = False
) -> Iterator[Any]:
    """`work` of every position, done ahead by processes, in the order of the positions.

    Args:
        work: makes tensors; picklable, and a function of the position alone.
        positions: may be endless.
        workers: number of processes, at most one a core; 0 works in this process.
        pinned: put tensors where a GPU fetches them without waiting.

    Raises:
        ValueError: `work` did, for this position.
    """
    workers = min(workers, usable_cores())
    if workers:
        importlib.import_module("torchvision.transforms")  # Once, for the processes that fork.
    loader = DataLoader(
        _Guarded(work),
        batch_size=None,
        sampler=positions,
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=pinned,
        generator=torch.Generator(),  # Else the loader draws from the random numbers of training.
    )
    for result in loader:
        if isinstance(result, str):
            raise ValueError(result)
        yield result


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Guarded(Dataset[Any]):
    """Returns the message of a `ValueError`, to which torch would add the worker's traceback."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self.work = work

    def __getitem__(self, position: int) -> Any:
        try:
            return self.work(position)
        except ValueError as error:
            return str(error)


def _ignore_signals(_: int) -> None:
    """Ctrl-C reaches the whole group; training stops its processes when all is saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):  # Not on Windows.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

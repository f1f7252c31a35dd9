"""Deep images: 16 bits a channel, or more channels than red, green and blue.

Pillow reads 16 bits of grey; of all others it drops bits or channels, or refuses them, so tifffile
reads those. In TIFF of 8 bits, a channel that is declared as transparency is none of these.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, TiffImagePlugin

from neural_similarity.choices import import_optional

TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0")
"""How TIFF files begin that Pillow knows; the last one is BigTIFF."""
ALPHA = (1, 2)
"""The values of ExtraSamples that mean transparency."""
CMYK = 5
"""The photometric interpretation of printers' colours, which Pillow converts."""
MOST_CHANNELS = 1024


class Depth(NamedTuple):
    """The number of channels of an image, and the bits of each."""

    channels: int
    bits: int

    def __str__(self) -> str:
        return f"{self.channels} channel{'s' * (self.channels > 1)} of {self.bits} bits"


class DeepImage(NamedTuple):
    """A deep image before its pixels are read: (width, height), and how to read (h, w, c)."""

    depth: Depth
    size: tuple[int, int]
    paged: bool
    read: Callable[[], np.ndarray]


def deep_grey(image: Image.Image) -> DeepImage:
    """A grey image of 16 bits, as Pillow opened it (modes I;16)."""
    paged = getattr(image, "is_animated", False)
    return DeepImage(Depth(1, 16), image.size, paged, lambda: np.asarray(image)[..., None])


def deep_tiff(file: BinaryIO) -> DeepImage | None:
    """The image of a TIFF that needs tifffile; None for other files.

    Raises:
        ValueError: its channels have neither 8 nor 16 bits, or are too many.
    """
    start = file.read(16)
    file.seek(0)
    if not start.startswith(TIFF_SIGNATURES):
        return None
    tags = TiffImagePlugin.ImageFileDirectory_v2(start if start[2:3] == b"+" else start[:8])
    file.seek(tags.next)
    tags.load(file)
    file.seek(0)
    depth = _tiff_depth(tags)
    if depth is None:
        return None
    size = tags[TiffImagePlugin.IMAGEWIDTH], tags[TiffImagePlugin.IMAGELENGTH]
    return DeepImage(depth, size, tags.next != 0, lambda: _read_tiff(file, depth))


def _tiff_depth(tags: Any) -> Depth | None:
    """The depth of an image that needs tifffile."""
    bits = max(_values(tags, TiffImagePlugin.BITSPERSAMPLE, 1))
    (channels,) = _values(tags, TiffImagePlugin.SAMPLESPERPIXEL, 1)
    transparent = any(e in ALPHA for e in _values(tags, TiffImagePlugin.EXTRASAMPLES, 0))
    printed = CMYK in _values(tags, TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0)
    if channels == 1 or (bits <= 8 and (channels - transparent in (1, 3) or printed)):
        return None
    integers = {*_values(tags, TiffImagePlugin.SAMPLEFORMAT, 1)} == {1}
    if bits not in (8, 16) or not integers or channels > MOST_CHANNELS:
        kind = "integers" if integers else "other numbers"
        raise ValueError(
            f"it has {channels} channels of {bits}-bit {kind}, not up to {MOST_CHANNELS} of 8- or "
            "16-bit integers from 0"
        )
    return Depth(channels, bits)


def _values(tags: Any, tag: int, default: int) -> Sequence[int]:
    value = tags.get(tag, default)
    return value if isinstance(value, tuple) else (value,)


def _read_tiff(file: BinaryIO, depth: Depth) -> np.ndarray:
    """Pixels (h, w, c) of the first page."""
    tifffile = import_optional("tifffile", f"TIFF of {depth}", "tiff")
    page = tifffile.TiffFile(io.BytesIO(file.read())).pages.first
    pixels = page.asarray()
    return np.moveaxis(pixels, 0, -1) if page.axes.startswith("S") else pixels

"""Random crops and flips of a whole batch, by one index into the padded set."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.choices import require_flag

AT_ONCE = 512
"""Images that are padded at a time, so that intermediate results stay small."""


@dataclass(frozen=True)
class Augment:
    """Random changes of every training image.

    Args:
        crop: pixels that are added on every side before a crop of the old size; 0 is off.
        flip: mirror half of the images, left to right.
        padding: what is added: zeros, or the image mirrored at its border (edge included).

    Raises:
        ValueError: `crop` is negative, or `padding` is neither of the two.
    """

    crop: int = 4
    flip: bool = True
    padding: Literal["zero", "symmetric"] = "zero"

    def __post_init__(self) -> None:
        if not isinstance(self.crop, int) or self.crop < 0:
            raise ValueError(f"`crop` must be an integer of at least 0, got {self.crop!r}")
        require_flag("flip", self.flip)
        if self.padding not in ("zero", "symmetric"):
            raise ValueError(f'`padding` must be "zero" or "symmetric", got {self.padding!r}')


class Windows:
    """Every crop of every image, plain and mirrored, as one view that a batch indexes.

    The padded images lie one after another as (row, column, channel). Row i of the view is the
    window whose upper left corner is pixel i of all of them, so a random crop is one number: its
    corner. Windows that reach over the edge of an image exist in the view, but no corner of ours
    points at them. Holds the padded set once, and once more if it flips.

    Args:
        pixels: uint8 (n, c, h, w).
        augment: how to pad, and whether to flip.
        device: where the padded images lie.

    Raises:
        ValueError: the images are no larger than the crop's padding, so that a window could miss
            its image altogether.
    """

    def __init__(self, pixels: Tensor, augment: Augment, device: torch.device | str) -> None:
        self._augment = augment
        self._count, self._channels, self._height, self._width = pixels.shape
        if augment.crop >= min(self._height, self._width):
            raise ValueError(
                f"`crop` must be smaller than the images, which have {self._height}x{self._width} "
                f"pixels, got {augment.crop}"
            )
        self._rows, self._columns = self._height + 2 * augment.crop, self._width + 2 * augment.crop
        shape = (1 + augment.flip, self._count, self._rows, self._columns, self._channels)
        memory = torch.empty(shape, dtype=pixels.dtype, device=device)
        for part, place in zip(pixels.split(AT_ONCE), memory.split(AT_ONCE, 1), strict=True):
            place[0] = _pad(part.to(device).permute(0, 2, 3, 1), augment)
            if augment.flip:
                place[1] = place[0].flip(2)
        self._view = self._windows_of(memory)

    def _windows_of(self, memory: Tensor) -> Tensor:
        """View (corners, h, w * c) of `memory` (flips, n, rows, columns, c)."""
        channels = self._channels
        last = (self._height - 1) * self._columns + self._width - 1  # from first to last pixel
        size = (memory.numel() // channels - last, self._height, self._width * channels)
        return memory.as_strided(size, (channels, self._columns * channels, 1))

    def draw(self, indices: Tensor, random: torch.Generator) -> Tensor:
        """Corners (b,) of a random window of each of the images `indices` (b,), both on the CPU."""
        count, choices = len(indices), 2 * self._augment.crop + 1
        top, left = torch.randint(choices, (2, count), generator=random)
        flip = torch.randint(1 + self._augment.flip, (count,), generator=random)
        return self.corner(indices, top, left, flip)

    def corner(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        """Where the window of image `index` begins; `top` and `left` count padded pixels."""
        return ((flip * self._count + index) * self._rows + top) * self._columns + left

    def take(self, corners: Tensor) -> Tensor:
        """The windows (b, c, h, w) at `corners` (b,): uint8, channels last in memory."""
        batch = self._view[corners].view(-1, self._height, self._width, self._channels)
        return batch.permute(0, 3, 1, 2)


def _pad(images: Tensor, augment: Augment) -> Tensor:
    """Images (n, h, w, c) with `crop` more pixels on each of the four sides."""
    crop = augment.crop
    if augment.padding == "zero":
        return F.pad(images, (0, 0, crop, crop, crop, crop))
    rows, columns = (
        torch.from_numpy(np.pad(np.arange(size), crop, mode="symmetric")).to(images.device)
        for size in images.shape[1:3]
    )
    return images[:, rows][:, :, columns]


def generator(purpose: str, seed: int, position: int = 0, *more: int) -> torch.Generator:
    """A fresh CPU generator; its numbers depend on the arguments alone.

    The arguments are hashed, so that neighbouring seeds and positions have nothing in common.
    """
    words = [purpose, *(str(int(number)) for number in (seed, position, *more))]
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))

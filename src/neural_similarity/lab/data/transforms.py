"""From pixels to the input of a network: random crops and flips of whole batches, and scaling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.choices import require_flag, require_known
from neural_similarity.lab.data.images import ImageFiles, ImageSet

PADDED_AT_ONCE = 512
"""Images that are padded at a time, so that intermediate results stay small."""
IMAGENET_STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation that torchvision's networks are trained with."""
SCALE_16_BIT = 257
"""The largest value of 16 bits, 65535, over that of 8 bits."""
Inputs = Literal["normalized", "imagenet", "raw"]
"""The network's input: pixels normalised by the channels of the training images or by those of
ImageNet, or raw (0 to 255)."""


@dataclass(frozen=True)
class Augment:
    """Random changes of every training image.

    Args:
        crop: pixels that are added on every side before a crop of the old size; 0 is off.
        flip: mirror half of the images, left to right.
        padding: what is added: zeros, or the image mirrored at its border, edge included
            (symmetric) or not (reflect).
        flips: at random in every epoch, or in every other epoch.
    """

    crop: int = 4
    flip: bool = True
    padding: Literal["zero", "symmetric", "reflect"] = "zero"
    flips: Literal["random", "alternate"] = "random"

    def __post_init__(self) -> None:
        if not isinstance(self.crop, int) or self.crop < 0:
            raise ValueError(f"`crop` must be an integer of at least 0, got {self.crop!r}")
        require_flag("flip", self.flip)
        require_known("padding", self.padding, ("zero", "symmetric", "reflect"))
        require_known("flips", self.flips, ("random", "alternate"))


class Windows:
    """Every crop of every image, plain and mirrored, as one view that a batch indexes.

    The padded images lie one after another as (row, column, channel). Row i of the view is the
    window whose upper left corner is pixel i of all of them, so a random crop is one number: its
    corner. Windows that reach over the edge of an image exist in the view, but no corner of ours
    points at them. Holds the padded set once, and once more if it flips.

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
        for part, place in zip(
            pixels.split(PADDED_AT_ONCE), memory.split(PADDED_AT_ONCE, 1), strict=True
        ):
            place[0] = _pad_images(part.to(device).permute(0, 2, 3, 1), augment)
            if augment.flip:
                place[1] = place[0].flip(2)
        self._view = self._windows_of(memory)

    def _windows_of(self, memory: Tensor) -> Tensor:
        """View (corners, h, w * c) of `memory` (flips, n, rows, columns, c)."""
        channels = self._channels
        # From a window's first pixel to its last: a later corner would read past the end.
        last = (self._height - 1) * self._columns + self._width - 1
        # Strides in bytes: the next corner is the next pixel, the next row of a window a padded row
        # further, and the pixels of a row with their channels lie side by side.
        size = (memory.numel() // channels - last, self._height, self._width * channels)
        return memory.as_strided(size, (channels, self._columns * channels, 1))

    def draw_corners(
        self, indices: Tensor, random: torch.Generator, flip: Tensor | None = None
    ) -> Tensor:
        """Corners (b,) of a random window of each of the images `indices` (b,), both on the CPU.

        `flip` (b,) says which ones are mirrored, 0 or 1; by default it is drawn.
        """
        count, choices = len(indices), 2 * self._augment.crop + 1
        top, left = torch.randint(choices, (2, count), generator=random)
        if flip is None:
            flip = torch.randint(1 + self._augment.flip, (count,), generator=random)
        return self.corner_of(indices, top, left, flip)

    def corner_of(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        """Where the window of image `index` begins; `top` and `left` count padded pixels."""
        # Mirrored images follow the plain ones, so a flip skips a whole set.
        return ((flip * self._count + index) * self._rows + top) * self._columns + left

    def take_windows(self, corners: Tensor) -> Tensor:
        """The windows (b, c, h, w) at `corners` (b,): uint8, channels last in memory."""
        batch = self._view[corners].view(-1, self._height, self._width, self._channels)
        return batch.permute(0, 3, 1, 2)


def _pad_images(images: Tensor, augment: Augment) -> Tensor:
    """Images (n, h, w, c) with `crop` more pixels on each of the four sides."""
    crop = augment.crop
    if augment.padding == "zero":
        return F.pad(images, (0, 0, crop, crop, crop, crop))
    rows, columns = (
        torch.from_numpy(np.pad(np.arange(size), crop, mode=augment.padding)).to(images.device)
        for size in images.shape[1:3]
    )
    return images[:, rows][:, :, columns]


@dataclass(frozen=True)
class Preprocess:
    """Standardise every channel: `(pixels / 255 - mean) / std`, of 16 bits `pixels / 65535`.

    `dataclasses.asdict` gives plain numbers, and lists are taken back, so JSON can hold it. Both
    are of values between 0 and 1, a number a channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(
                "`mean` and `std` must hold one number per channel, and every `std` must be "
                f"positive, got mean={self.mean} and std={self.std}"
            )

    @classmethod
    def for_images(cls, images: ImageSet, inputs: Inputs) -> "Preprocess":
        """What makes `inputs` of `images`: by ImageNet's numbers, raw, or by these images' own."""
        require_known("inputs", inputs, get_args(Inputs))
        if inputs == "imagenet":
            return cls(*IMAGENET_STATISTICS)
        return cls.raw_values(images.shape[0]) if inputs == "raw" else cls.fit_to_images(images)

    @classmethod
    def fit_to_images(cls, images: ImageSet) -> "Preprocess":
        """The mean and the (population) standard deviation of every channel of `images`.

        Images in files are not read for that: they get the usual numbers of ImageNet.

        Raises:
            ValueError: there are no images, or all values of a channel are equal.
        """
        if isinstance(images, ImageFiles):
            return cls(*IMAGENET_STATISTICS)
        moments = [_mean_and_deviation(images.pixels[:, c]) for c in range(images.pixels.shape[1])]
        for channel, (_, std) in enumerate(moments):
            if not std > 0:
                raise ValueError(
                    f"`images` must vary in every channel, got {len(images)} images with one "
                    f"value in channel {channel}; give `Preprocess` a mean and a deviation"
                )
        return cls(tuple(mean for mean, _ in moments), tuple(std for _, std in moments))

    @classmethod
    def raw_values(cls, channels: int) -> "Preprocess":
        return cls((0.0,) * channels, (1 / 255,) * channels)

    def scale_and_shift(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Scale and shift (c, 1, 1), float32, that standardise the values 0 to 255."""
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        return _as_column(scale, device), _as_column(shift, device)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float32 (n, c, h, w) from uint8 or int32 (n, c, h, w), in the same memory format."""
        self.check_pixels(pixels)
        scale, shift = self.scale_and_shift(pixels.device)
        return standardise_pixels(pixels, scale, shift)

    def check_pixels(self, pixels: Tensor) -> None:
        """Raise a ValueError unless `pixels` is uint8 or int32 (n, c, h, w) with our channels."""
        channels, known = len(self.mean), pixels.dtype in (torch.uint8, torch.int32)
        if not known or pixels.ndim != 4 or pixels.shape[1] != channels:
            raise ValueError(
                f"`pixels` must be a uint8 or int32 tensor (n, {channels}, h, w), got "
                f"{pixels.dtype} of shape {tuple(pixels.shape)}"
            )


def standardise_pixels(pixels: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`scale * pixels + shift` in float32, in the memory format of `pixels` (n, c, h, w).

    Of int32 pixels, with 16 bits, 65535 is what 255 is of uint8.
    """
    values = pixels.to(torch.float32)
    if pixels.dtype == torch.int32:
        values.div_(SCALE_16_BIT)
    return values.mul_(scale).add_(shift)


def join_pixels(images: Sequence[Tensor]) -> Tensor:
    """Images (c, h, w) as one tensor (n, c, h, w): int32, of 16 bits, where one of them is."""
    if all(image.dtype == torch.uint8 for image in images):
        return torch.stack(list(images))
    return torch.stack([x.int() * SCALE_16_BIT if x.dtype == torch.uint8 else x for x in images])


def _mean_and_deviation(values: Tensor) -> tuple[float, float]:
    """Mean and deviation, as multiples of the largest value: exact, from their histogram."""
    count = 256 if values.dtype == torch.uint8 else 256 * 256
    counts = torch.bincount(values.flatten(), minlength=count).double()
    levels = torch.arange(count, dtype=torch.float64) / (count - 1)
    mean = counts @ levels / counts.sum()
    variance = counts @ (levels - mean).square() / counts.sum()
    return mean.item(), variance.sqrt().item()


def _as_column(values: Sequence[float], device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]

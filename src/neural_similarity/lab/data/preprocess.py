"""From pixels to the input of a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from neural_similarity.choices import require_known
from neural_similarity.lab.data.images import ImageFiles, ImageSet

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation that torchvision's networks are trained with."""
Inputs = Literal["normalized", "imagenet", "raw"]
"""The network's input: pixels normalised by the channels of the training images or by those of
ImageNet, or raw (0 to 255)."""


@dataclass(frozen=True)
class Preprocess:
    """Standardise every channel: `(pixels / 255 - mean) / std`.

    `dataclasses.asdict` gives plain numbers, and lists are taken back, so JSON can hold it.

    Args:
        mean: of every channel, of values between 0 and 1.
        std: of every channel, in the same unit.

    Raises:
        ValueError: the two differ in length, or a deviation is not positive.
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
    def of(cls, images: ImageSet, inputs: Inputs) -> "Preprocess":
        """What makes `inputs` of `images`: `raw`, `IMAGENET`, or `fit` for normalised ones.

        Raises:
            ValueError: `inputs` is unknown.
        """
        require_known("inputs", inputs, get_args(Inputs))
        if inputs == "imagenet":
            return cls(*IMAGENET)
        return cls.raw(images.shape[0]) if inputs == "raw" else cls.fit(images)

    @classmethod
    def fit(cls, images: ImageSet) -> "Preprocess":
        """The mean and the (population) standard deviation of every channel of `images`.

        Images in files are not read for that: they get the usual numbers of ImageNet.

        Raises:
            ValueError: there are no images, or all values of a channel are equal.
        """
        if isinstance(images, ImageFiles):
            return cls(*IMAGENET)
        moments = [_moments(images.pixels[:, c]) for c in range(images.pixels.shape[1])]
        for channel, (_, std) in enumerate(moments):
            if not std > 0:
                raise ValueError(
                    f"`images` must vary in every channel, got {len(images)} images with one "
                    f"value in channel {channel}; give `Preprocess` a mean and a deviation"
                )
        return cls(tuple(mean for mean, _ in moments), tuple(std for _, std in moments))

    @classmethod
    def raw(cls, channels: int) -> "Preprocess":
        """Leave the values 0 to 255 as they are."""
        return cls((0.0,) * channels, (1 / 255,) * channels)

    def affine(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Scale and shift (c, 1, 1), float32, that standardise the values 0 to 255."""
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        return _column(scale, device), _column(shift, device)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float32 (n, c, h, w) from uint8 (n, c, h, w), in the same memory format.

        Raises:
            ValueError: `pixels` is of another type or has another number of channels.
        """
        self.check(pixels)
        scale, shift = self.affine(pixels.device)
        return standardise(pixels, scale, shift)

    def check(self, pixels: Tensor) -> None:
        """Raise a ValueError unless `pixels` is uint8 (n, c, h, w) with our channels."""
        channels = len(self.mean)
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != channels:
            raise ValueError(
                f"`pixels` must be a uint8 tensor (n, {channels}, h, w), got {pixels.dtype} of "
                f"shape {tuple(pixels.shape)}"
            )


def standardise(pixels: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`scale * pixels + shift` in float32, in the memory format of `pixels` (n, c, h, w)."""
    return pixels.to(torch.float32).mul_(scale).add_(shift)


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and deviation of uint8 `values`, as multiples of 255: exact, from their histogram."""
    counts = torch.bincount(values.flatten(), minlength=256).double()
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = counts @ levels / counts.sum()
    variance = counts @ (levels - mean).square() / counts.sum()
    return mean.item(), variance.sqrt().item()


def _column(values: Sequence[float], device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]

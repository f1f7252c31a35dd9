"""Labelled images in memory, and the two parts of a data set."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neural_similarity.lab.data.image_files import ImageFiles, positions
from neural_similarity.lab.data.seeding import generator


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size with their classes.

    Args:
        pixels: uint8 (n, c, h, w), contiguous.
        labels: int64 (n,), positions in `classes`.
        classes: the names of the classes.

    Raises:
        ValueError: a tensor is of another type or shape, or a label names no class.
    """

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_pixels(self.pixels)
        _check_labels(self.labels, len(self.pixels), len(self.classes))

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, indices: Tensor | Sequence[int]) -> "Images":
        """The images at `indices` (m,), in that order, or where a mask is True."""
        chosen = positions(indices, len(self))
        return Images(self.pixels[chosen], self.labels[chosen], self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def head(self, count: int) -> Tensor:
        """Pixels of the first images, uint8 (count, c, h, w)."""
        return self.pixels[:count]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Pixels of all images, uint8 (size, c, h, w), the last chunk maybe smaller."""
        return iter(self.pixels.split(size))

    def feed(self, digest: "hashlib._Hash") -> None:
        """Add pixels, labels and classes to a digest."""
        digest.update(json.dumps([list(self.pixels.shape), list(self.classes)]).encode())
        digest.update(self.pixels.cpu().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)


ImageSet = Images | ImageFiles


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: what to train on, and what to score once."""

    name: str
    train: ImageSet
    test: ImageSet

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both parts, see :func:`digest_of`."""
        return digest_of((self.train, self.test))


def digest_of(parts: Iterable[ImageSet]) -> str:
    """SHA-256 over the pixels, labels and classes of all parts, as 64 hex digits.

    Of images in files it covers names and sizes in place of pixels.
    """
    digest = hashlib.sha256()
    for part in parts:
        part.feed(digest)
    return digest.hexdigest()


def held_out(images: ImageSet, validation: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split `validation` images off, the same number of every class.

    Where the classes do not divide it, the first classes give one image more. Both parts keep the
    order of `images`; the choice depends on the labels, `validation` and `seed` alone.

    Args:
        images: the training part of a data set.
        validation: how many images to hold out.
        seed: which images they are.

    Returns:
        The remaining images and the held-out ones.

    Raises:
        ValueError: a class has too few images to give its share and keep one.
    """
    if validation < 0:
        raise ValueError(f"`validation` must not be negative, got {validation}")
    each, extra = divmod(validation, len(images.classes))
    shares = [each + (c < extra) for c in range(len(images.classes))]
    try:
        return split_off(images, shares, seed)
    except ValueError as error:
        raise ValueError(
            f"`validation` must leave every class an image to train on, got {validation}: {error}"
        ) from error


def split_off(images: ImageSet, counts: Sequence[int], seed: int) -> tuple[ImageSet, ImageSet]:
    """Split `counts[c]` images of every class c off; see :func:`held_out`."""
    random = generator("held out", seed)
    chosen = torch.zeros(len(images), dtype=torch.bool)
    for c, count in enumerate(counts):
        members = (images.labels == c).nonzero().flatten()
        if count >= max(len(members), 1):
            raise ValueError(
                f"`images` must have more than {count} images of the class {images.classes[c]!r} "
                f"to hold {count} of them out, got {len(members)}"
            )
        chosen[members[torch.randperm(len(members), generator=random)[:count]]] = True
    return images.subset((~chosen).nonzero().flatten()), images.subset(chosen.nonzero().flatten())


def _check_pixels(pixels: Tensor) -> None:
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not pixels.is_contiguous():
        raise ValueError(
            "`pixels` must be a contiguous uint8 tensor (n, c, h, w), got "
            f"{pixels.dtype} of shape {tuple(pixels.shape)} and strides {pixels.stride()}"
        )


def _check_labels(labels: Tensor, count: int, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise ValueError(
            f"`labels` must be an int64 tensor ({count},), one per image, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    if count and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"`labels` must lie in 0..{classes - 1}, one of {classes} classes, got "
            f"{labels.min()}..{labels.max()}"
        )

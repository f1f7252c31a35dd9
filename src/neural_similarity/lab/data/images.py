"""Labelled images, in memory or in files, and the two parts of a data set."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neural_similarity.lab.data.decoding import read_centre, read_random_window, work_ahead
from neural_similarity.lab.data.listing import Listing

MOST_CLASSES_NAMED = 10
"""The most classes whose names a description lists."""


def seeded_generator(purpose: str, seed: int, position: int = 0, *more: int) -> torch.Generator:
    """A fresh CPU generator; its numbers depend on the arguments alone.

    The arguments are hashed, so that neighbouring seeds and positions have nothing in common.
    """
    words = [purpose, *(str(int(number)) for number in (seed, position, *more))]
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size with their classes.

    Args:
        pixels: uint8, or int32 for values of 16 bits, (n, c, h, w), contiguous.
        labels: int64 (n,), positions in `classes`.
        classes: the names of the classes.

    Raises:
        ValueError: a tensor is of another type or shape, or a label names no class.
    """

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        pixels, labels, count = self.pixels, self.labels, len(self.classes)
        known = pixels.dtype in (torch.uint8, torch.int32)
        if not known or pixels.ndim != 4 or not pixels.is_contiguous():
            raise ValueError(
                "`pixels` must be a contiguous uint8 or int32 tensor (n, c, h, w), got "
                f"{pixels.dtype} of shape {tuple(pixels.shape)} and strides {pixels.stride()}"
            )
        if labels.dtype != torch.int64 or labels.shape != (len(pixels),):
            raise ValueError(
                f"`labels` must be an int64 tensor ({len(pixels)},), one per image, got "
                f"{labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < count:
            raise ValueError(
                f"`labels` must lie in 0..{count - 1}, one of {count} classes, got "
                f"{labels.min()}..{labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, indices: Tensor | Sequence[int]) -> "Images":
        """The images at `indices` (m,), in that order, or where a mask is True."""
        chosen = image_positions(indices, len(self))
        return Images(self.pixels[chosen], self.labels[chosen], self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @property
    def class_sizes(self) -> dict[str, int]:
        counts = self.labels.bincount(minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def head(self, count: int) -> Tensor:
        """Pixels of the first images, uint8 (count, c, h, w)."""
        return self.pixels[:count]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Pixels of all images, uint8 (size, c, h, w); the last chunk may be smaller."""
        return iter(self.pixels.split(size))

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Add pixels, labels and classes to a digest."""
        digest.update(json.dumps([list(self.pixels.shape), list(self.classes)]).encode())
        digest.update(self.pixels.cpu().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """RGB images of any size in files, with their classes; `Images` holds such in memory.

    Args:
        folder: where the files are.
        names: bytes (n,): of every file below `folder`, one array, so that processes share it.
        sizes: int64 (n,): bytes of every file.
        labels: int64 (n,), positions in `classes`.
        classes: the names of the classes.
        image_size: height and width that the images are decoded to.
        workers: processes that decode.
    """

    folder: Path
    names: np.ndarray
    sizes: np.ndarray
    labels: Tensor
    classes: tuple[str, ...]
    image_size: int
    workers: int

    @classmethod
    def from_listing(cls, listing: Listing, *, image_size: int, workers: int) -> "ImageFiles":
        return cls(
            listing.folder,
            np.array([os.fsencode(name) for name in listing.relative_files]),
            np.array([size for files in listing.members.values() for size in files.values()]),
            class_labels(listing.class_sizes),
            listing.class_names,
            image_size,
            workers,
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.image_size, self.image_size

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageFiles":
        chosen = image_positions(indices, len(self))
        names, sizes = self.names[chosen.numpy()], self.sizes[chosen.numpy()]
        return replace(self, names=names, sizes=sizes, labels=self.labels[chosen])

    def head(self, count: int) -> Tensor:
        """Central pixels of the first images, uint8 (count, c, h, w)."""
        return self.central_pixels(range(min(count, len(self))))

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Central pixels of all images, uint8 (size, c, h, w); the last chunk may be smaller."""
        decode = partial(self._decode_chunk, size=size)
        return work_ahead(decode, range(0, len(self), size), workers=self.workers)

    def _decode_chunk(self, start: int, size: int) -> Tensor:
        return self.central_pixels(range(start, min(start + size, len(self))))

    def central_pixels(self, indices: Sequence[int]) -> Tensor:
        """Central pixels of some images, uint8 (m, c, h, w), see `read_centre`."""
        return _stack_pixels(
            read_centre(self.file_path(index), self.image_size) for index in indices
        )

    def random_windows(
        self, indices: Sequence[int], *, seed: int, epoch: int, flip: bool
    ) -> Tensor:
        """Random windows of some images, uint8 (m, c, h, w), see `read_random_window`.

        That of an image is a function of the seed, the epoch and its index alone. If `flip`, half
        of them are mirrored.
        """
        draws = (seeded_generator("window", seed, epoch, index) for index in indices)
        return _stack_pixels(
            read_random_window(self.file_path(index), self.image_size, draw, flip=flip)
            for index, draw in zip(indices, draws, strict=True)
        )

    def file_path(self, index: int) -> Path:
        return self.folder / os.fsdecode(self.names[index])

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Add names, sizes, labels and classes to a digest; not the content, of many GB."""
        digest.update(json.dumps([len(self), self.image_size, list(self.classes)]).encode())
        for part in (self.names, self.sizes, self.labels.numpy()):
            digest.update(np.ascontiguousarray(part).data)


ImageSet = Images | ImageFiles


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: what to train on, and what to score once."""

    name: str
    train: ImageSet
    test: ImageSet
    resized: bool = False
    """Whether the images had other sizes, and this one is not the user's choice."""

    @property
    def describe_sizes(self) -> str:
        """Numbers of images and classes, with the names of the first few."""
        classes = self.train.classes
        names = ", ".join(classes[:MOST_CLASSES_NAMED]) + (
            ", ..." if len(classes) > MOST_CLASSES_NAMED else ""
        )
        counts = f"{len(self.train):,} training, {len(self.test):,} test images"
        return f"{counts}, {len(classes)} classes: {names}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both parts, see :func:`digest_of`."""
        return digest_of((self.train, self.test))


def class_labels(sizes: Sequence[int]) -> Tensor:
    """Labels int64 (n,) of images that lie class by class, `sizes[c]` of class c."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def digest_of(parts: Iterable[ImageSet]) -> str:
    """SHA-256 over the pixels, labels and classes of all parts, as 64 hex digits.

    Of images in files it covers names and sizes in place of pixels.
    """
    digest = hashlib.sha256()
    for part in parts:
        part.update_digest(digest)
    return digest.hexdigest()


def hold_out(images: ImageSet, validation: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split `validation` images off, the same number of every class.

    Where the classes do not divide it, the first classes give one image more. Both parts keep the
    order of `images`; the choice depends on the labels, `validation` and `seed` alone.

    Returns:
        The remaining images and the held-out ones.
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
    """Split `counts[c]` images of every class c off; see :func:`hold_out`."""
    random = seeded_generator("held out", seed)
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


def _stack_pixels(pixels: Iterable[np.ndarray]) -> Tensor:
    """Images (h, w, c) as one tensor (n, c, h, w), channels last in memory."""
    return torch.from_numpy(np.stack(list(pixels))).permute(0, 3, 1, 2)


def image_positions(indices: Tensor | Sequence[int], count: int) -> Tensor:
    """The `indices` of some of `count` images as int64 (m,); a mask is of all images."""
    chosen = torch.as_tensor(indices)
    if chosen.dtype == torch.bool and chosen.shape == (count,):
        return chosen.nonzero().flatten()
    if chosen.numel() and (chosen.dtype == torch.bool or chosen.is_floating_point()):
        raise ValueError(
            f"`indices` must be integers, or a mask of {count} images, got {chosen.dtype} of shape "
            f"{tuple(chosen.shape)}"
        )
    return chosen.long()

"""Labelled images that stay in their files until a batch needs them."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neural_similarity.lab.data.decoding import read_centre, read_random_window
from neural_similarity.lab.data.listing import Listing
from neural_similarity.lab.data.prefetch import in_order
from neural_similarity.lab.data.seeding import generator


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
    def of(cls, listing: Listing, *, image_size: int, workers: int) -> "ImageFiles":
        """The images of a listing."""
        return cls(
            listing.folder,
            np.array([os.fsencode(name) for name in listing.files]),
            np.array([size for sizes in listing.sizes for size in sizes]),
            torch.tensor(listing.labels),
            listing.classes,
            image_size,
            workers,
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return 3, self.image_size, self.image_size

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageFiles":
        """The images at `indices` (m,), in that order, or where a mask is True."""
        chosen = positions(indices, len(self))
        names, sizes = self.names[chosen.numpy()], self.sizes[chosen.numpy()]
        return replace(self, names=names, sizes=sizes, labels=self.labels[chosen])

    def head(self, count: int) -> Tensor:
        """Central pixels of the first images, uint8 (count, c, h, w)."""
        return self.centres(range(min(count, len(self))))

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Central pixels of all images, uint8 (size, c, h, w), the last chunk maybe smaller."""
        decode = partial(self._chunk, size=size)
        return in_order(decode, range(0, len(self), size), workers=self.workers)

    def _chunk(self, start: int, size: int) -> Tensor:
        return self.centres(range(start, min(start + size, len(self))))

    def centres(self, indices: Sequence[int]) -> Tensor:
        """Central pixels of some images, uint8 (m, c, h, w), see `read_centre`."""
        return _stacked([read_centre(self.path(index), self.image_size) for index in indices])

    def windows(self, indices: Sequence[int], *, seed: int, epoch: int, flip: bool) -> Tensor:
        """Random windows of some images, uint8 (m, c, h, w), see `read_random_window`.

        That of an image is a function of the seed, the epoch and its index alone.

        Args:
            indices: which images.
            seed: of the windows and of what is mirrored.
            epoch: the same.
            flip: mirror half of the images, left to right.
        """
        return _stacked([self._window(index, seed, epoch, flip) for index in indices])

    def _window(self, index: int, seed: int, epoch: int, flip: bool) -> np.ndarray:
        random = generator("window", seed, epoch, index)
        pixels = read_random_window(self.path(index), self.image_size, random)
        mirrored = flip and torch.rand(1, generator=random).item() < 0.5
        return pixels[:, ::-1] if mirrored else pixels

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.folder / os.fsdecode(self.names[index])

    def feed(self, digest: "hashlib._Hash") -> None:
        """Add names, sizes, labels and classes to a digest; not the content, of many GB."""
        digest.update(json.dumps([len(self), self.image_size, list(self.classes)]).encode())
        for part in (self.names, self.sizes, self.labels.numpy()):
            digest.update(np.ascontiguousarray(part).data)


def _stacked(pixels: Sequence[np.ndarray]) -> Tensor:
    """Images (h, w, c) as one tensor (n, c, h, w), channels last in memory."""
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def positions(indices: Tensor | Sequence[int], count: int) -> Tensor:
    """The `indices` of some of `count` images as int64 (m,); a mask is of all images.

    Raises:
        ValueError: they are neither integers nor a mask of `count`.
    """
    chosen = torch.as_tensor(indices)
    if chosen.dtype == torch.bool and chosen.shape == (count,):
        return chosen.nonzero().flatten()
    if chosen.numel() and (chosen.dtype == torch.bool or chosen.is_floating_point()):
        raise ValueError(
            f"`indices` must be integers, or a mask of {count} images, got {chosen.dtype} of shape "
            f"{tuple(chosen.shape)}"
        )
    return chosen.long()

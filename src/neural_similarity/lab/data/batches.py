"""Training batches, each a function of seed and step."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab.data.decoding import work_ahead
from neural_similarity.lab.data.images import ImageFiles, Images, seeded_generator
from neural_similarity.lab.data.transforms import Augment, Preprocess, Windows, standardise_pixels


class Place(NamedTuple):
    """Device, layout and share of batches."""

    device: torch.device | str = "cpu"
    memory_format: torch.memory_format = torch.channels_last
    share: slice = slice(None)
    """The part of every batch that this process makes, where several share it."""


HERE = Place()


class EpochOrder:
    """Which images make the batch of a step: a permutation of all for every epoch.

    The last, incomplete batch of an epoch is dropped. With `labels`, an epoch is as many draws with
    equal chances for every class and, in a class, for every image.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int, labels: Tensor | None = None
    ) -> None:
        if not 1 <= batch_size <= count:
            raise ValueError(
                "`batch_size` must be at least 1 and at most the number of images, got a batch of "
                f"{batch_size} from {count} images"
            )
        self.steps_per_epoch = count // batch_size
        self._count, self._batch_size, self._seed = count, batch_size, seed
        self._chances = None if labels is None else 1 / labels.bincount()[labels].double()
        self._epoch, self._permutation = 0, self._permutation_of(0)

    def indices_at(self, step: int) -> tuple[int, Tensor]:
        """The epoch of a step, and the indices (b,) of its images, on the CPU."""
        if step < 0:
            raise ValueError(f"`step` must not be negative, got {step}")
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, self._permutation_of(epoch)
        return epoch, self._permutation[position * self._batch_size :][: self._batch_size]

    def _permutation_of(self, epoch: int) -> Tensor:
        random = seeded_generator("order", self._seed, epoch)
        if self._chances is None:
            return torch.randperm(self._count, generator=random)
        return torch.multinomial(self._chances, self._count, replacement=True, generator=random)


class Batches:
    """Shuffled, augmented, standardised batches of a set that lies on `device` as a whole.

    Every epoch is another permutation, see `EpochOrder`, and drops its last, incomplete batch.
    Random numbers come from the CPU, so every device sees the same batches, and a run that resumes
    at a step sees the batches it would have seen.

    Args:
        images: what to train on.
        batch_size: images in a batch.
        preprocess: what turns pixels into the network's input.
        augment: random crops and flips; None leaves the images as they are.
        balanced: draw every class equally often.
        seed: of the order, the crops and the flips.
        place: where the set is kept and the batches are made.

    Raises:
        ValueError: `images` has fewer images than a batch, or other channels than `preprocess`.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        *,
        preprocess: Preprocess,
        augment: Augment | None = None,
        balanced: bool = False,
        seed: int = 0,
        place: Place = HERE,
    ) -> None:
        labels = images.labels if balanced else None
        self._order, self._place = EpochOrder(len(images), batch_size, seed, labels), place
        preprocess.check_pixels(images.pixels)
        self._seed = seed
        augment = augment or Augment(crop=0, flip=False)
        self._sides = _first_sides(len(images), augment, seed)
        self._windows = Windows(images.pixels, augment, place.device)
        self._labels = images.labels.to(place.device)
        self._scale, self._shift = preprocess.scale_and_shift(place.device)
        count = len(range(batch_size)[place.share])
        self._drawn = torch.zeros(2, count, dtype=torch.int64, device=place.device)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of one step: float32 (b, c, h, w), and its labels, int64 (b,)."""
        self.load(step)
        return self.loaded()

    def load(self, step: int) -> None:
        """Choose the batch of one step: what the host draws goes to where `loaded` reads."""
        epoch, chosen = self._order.indices_at(step)
        flip = None if self._sides is None else (self._sides[chosen] + epoch) % 2
        random = seeded_generator("crops", self._seed, step)
        corners = self._windows.draw_corners(chosen, random, flip)
        # One transfer for both: each costs more than its few hundred bytes, and the host would wait
        # for the last step. From memory that is not pinned, CUDA returns when it has read it.
        drawn = torch.stack([chosen, corners])[:, self._place.share]
        self._drawn.copy_(drawn, non_blocking=True)

    def loaded(self) -> tuple[Tensor, Tensor]:
        """The batch that was loaded last, as `at` gives it; all of it happens on the device."""
        chosen, corners = self._drawn
        pixels = self._windows.take_windows(corners)
        pixels = pixels.contiguous(memory_format=self._place.memory_format)
        return standardise_pixels(pixels, self._scale, self._shift), self._labels[chosen]


def _first_sides(count: int, augment: Augment, seed: int) -> Tensor | None:
    """Which images are mirrored (1) in even epochs and not in odd ones, where they alternate."""
    if not augment.flip or augment.flips == "random":
        return None
    return torch.randint(2, (count,), generator=seeded_generator("sides", seed))


@dataclass(frozen=True, eq=False)
class _Decoder:
    """Pixels, uint8, and labels of a step; it is sent to worker processes, so it holds little."""

    images: ImageFiles
    order: EpochOrder
    seed: int
    flip: bool
    share: slice

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, chosen = self.order.indices_at(step)
        chosen = chosen[self.share]
        indices = chosen.tolist()
        pixels = self.images.random_windows(indices, seed=self.seed, epoch=epoch, flip=self.flip)
        return pixels, self.images.labels[chosen]


class FileBatches:
    """Shuffled, augmented, standardised batches, decoded ahead by other processes.

    As `Batches`, for images in files: every image is a random window, resized, and half of them
    are mirrored if `flip`. Steps that follow each other are decoded ahead; any other step starts
    over, so a run that resumes in the middle of an epoch sees the batches it would have seen.
    """

    def __init__(
        self,
        images: ImageFiles,
        batch_size: int,
        *,
        preprocess: Preprocess,
        flip: bool = True,
        balanced: bool = False,
        seed: int = 0,
        place: Place = HERE,
    ) -> None:
        labels = images.labels if balanced else None
        order = EpochOrder(len(images), batch_size, seed, labels)
        self._decode, self._place = _Decoder(images, order, seed, flip, place.share), place
        preprocess.check_pixels(torch.empty(0, *images.shape, dtype=torch.uint8))
        self._device = torch.device(place.device)
        self._scale, self._shift = preprocess.scale_and_shift(place.device)
        self._next, self._ahead = -1, iter(())
        self._batch: list[Tensor] = []

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        self.load(step)
        return self.loaded()

    def load(self, step: int) -> None:
        """Wait for the batch of one step, and send it to the device."""
        if step != self._next:
            self._ahead = self._batches_from(step)
        self._batch = [part.to(self._device, non_blocking=True) for part in next(self._ahead)]
        self._next = step + 1

    def loaded(self) -> tuple[Tensor, Tensor]:
        pixels, labels = self._batch
        pixels = pixels.contiguous(memory_format=self._place.memory_format)
        return standardise_pixels(pixels, self._scale, self._shift), labels

    def _batches_from(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of all steps from `step` on, pixels as uint8."""
        pinned = self._device.type == "cuda"
        workers = self._decode.images.workers
        return work_ahead(self._decode, itertools.count(step), workers=workers, pinned=pinned)

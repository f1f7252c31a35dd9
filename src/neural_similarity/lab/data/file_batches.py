"""Training batches from files, each a function of the seed and the step alone."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_similarity.lab.data.batches import Order
from neural_similarity.lab.data.image_files import ImageFiles
from neural_similarity.lab.data.prefetch import in_order
from neural_similarity.lab.data.preprocess import Preprocess, standardise


@dataclass(frozen=True, eq=False)
class _Decoder:
    """Pixels, uint8, and labels of a step; goes to other processes, so it holds nothing else."""

    images: ImageFiles
    order: Order
    seed: int
    flip: bool

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, chosen = self.order.at(step)
        indices = chosen.tolist()
        pixels = self.images.windows(indices, seed=self.seed, epoch=epoch, flip=self.flip)
        return pixels, self.images.labels[chosen]


class FileBatches:
    """Shuffled, augmented, standardised batches, decoded ahead by other processes.

    As `Batches`, for images in files: every image is a random window, resized, and half of them
    are mirrored. Steps that follow each other are decoded ahead; any other step begins anew, so a
    run that resumes in the middle of an epoch sees the batches it would have seen.

    Args:
        images: what to train on.
        batch_size: images in a batch.
        preprocess: what turns pixels into the network's input.
        flip: mirror half of the images.
        seed: of the order, the windows and the flips.
        device: where the batches go.
        channels_last: the memory format of the batches.

    Raises:
        ValueError: `images` has fewer images than a batch, or other channels than `preprocess`.
    """

    def __init__(
        self,
        images: ImageFiles,
        batch_size: int,
        *,
        preprocess: Preprocess,
        flip: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        channels_last: bool = True,
    ) -> None:
        self._decode = _Decoder(images, Order(len(images), batch_size, seed), seed, flip)
        preprocess.check(torch.empty(0, *images.shape, dtype=torch.uint8))
        self._device = torch.device(device)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._scale, self._shift = preprocess.affine(device)
        self._next, self._ahead = -1, iter(())
        self._batch: list[Tensor] = []

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of one step: float32 (b, c, h, w), and its labels, int64 (b,).

        Raises:
            ValueError: `step` is negative, or a file is no image or damaged.
        """
        self.load(step)
        return self.loaded()

    def load(self, step: int) -> None:
        """Wait for the batch of one step, and send it to the device."""
        if step != self._next:
            self._ahead = self._from(step)
        self._batch = [part.to(self._device, non_blocking=True) for part in next(self._ahead)]
        self._next = step + 1

    def loaded(self) -> tuple[Tensor, Tensor]:
        """The batch that was loaded last, as `at` gives it."""
        pixels, labels = self._batch
        pixels = pixels.contiguous(memory_format=self._format)
        return standardise(pixels, self._scale, self._shift), labels

    def _from(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of all steps from `step` on, pixels as uint8."""
        pinned = self._device.type == "cuda"
        workers = self._decode.images.workers
        return in_order(self._decode, itertools.count(step), workers=workers, pinned=pinned)

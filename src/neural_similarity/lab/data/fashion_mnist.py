"""The packaged part of Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017)."""

import lzma
from importlib.resources import files

import numpy as np
import torch

from neural_similarity.lab.data.images import Dataset, Images

CLASSES = (
    "T-shirt/top",
    *"Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".split(),
    "Ankle boot",
)
FILE = "fashion-mnist-10k.xz"
EACH = (800, 200)
"""Images of every class in the training and the test part."""


def load_embedded() -> Dataset:
    """The first 800 training and 200 test images of every class of Fashion-MNIST.

    Classes alternate, so that image i has the label i mod 10 and every prefix is balanced.
    `scripts/make_embedded.py` of commit 395d80fa made the file.
    """
    train, test = unpack_embedded(
        files("neural_similarity.lab.data").joinpath("embedded", FILE).read_bytes()
    )
    return Dataset("embedded", _interleave_classes(train), _interleave_classes(test))


def unpack_embedded(packed: bytes) -> list[np.ndarray]:
    """Two uint8 arrays (10, images of a class, 28, 28) from the bytes of the file."""
    try:
        values = np.frombuffer(lzma.decompress(packed), np.uint8)
        parts = np.split(values.reshape(-1, 28, 28), [len(CLASSES) * EACH[0]])
        return [
            part.reshape(len(CLASSES), each, 28, 28) for part, each in zip(parts, EACH, strict=True)
        ]
    except (lzma.LZMAError, ValueError) as error:
        raise ValueError(
            f"the packaged file {FILE} must hold {len(CLASSES) * sum(EACH):,} images of 28x28, "
            f"got a damaged one ({error}); install neural-similarity again"
        ) from error


def _interleave_classes(by_class: np.ndarray) -> Images:
    alternating = np.ascontiguousarray(by_class.swapaxes(0, 1)).reshape(-1, 1, 28, 28)
    labels = torch.arange(len(alternating)) % len(CLASSES)
    return Images(torch.from_numpy(alternating), labels, CLASSES)

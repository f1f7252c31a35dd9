"""Make the embedded data set from the four IDX files of Fashion-MNIST.

    apt-get install dataset-fashion-mnist
    python scripts/make_embedded.py /usr/share/datasets/fashion-mnist

The official files (`nsim data fashion-mnist`) hold the same images. Takes the first 800 training
and 200 test images of every class, in the order of the files, and writes their pixels, class by
class, with LZMA: labels are implied, and images of one class side by side pack best. The same
files and liblzma give the same bytes.
"""

import argparse
import lzma
from pathlib import Path

import numpy as np

from neural_similarity.lab.data import Images
from neural_similarity.lab.data.fashion_mnist import EACH, FILE, load_fashion_mnist

TARGET = Path(__file__).parents[1] / "src/neural_similarity/lab/data/embedded" / FILE
# Four bits of context from the byte to the left and no alignment: the smallest for 28-byte rows.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def first_of_each(images: Images, each: int) -> np.ndarray:
    """The first images of every class: uint8 (classes, each, h, w)."""
    pixels, labels = images.pixels[:, 0].numpy(), images.labels.numpy()
    return np.stack([pixels[labels == c][:each] for c in range(len(images.classes))])


def pack_images(train: Images, test: Images, each: tuple[int, int] = EACH) -> bytes:
    """The bytes of the embedded file."""
    parts = [first_of_each(*part).tobytes() for part in zip((train, test), each, strict=True)]
    return lzma.compress(b"".join(parts), format=lzma.FORMAT_XZ, filters=FILTERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the four IDX files")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    arguments = parser.parse_args()
    source = load_fashion_mnist(arguments.folder)
    arguments.out.write_bytes(pack_images(source.train, source.test))

"""Make the embedded data set from the four IDX files of Fashion-MNIST.

    apt-get install dataset-fashion-mnist
    python scripts/make_embedded.py /usr/share/datasets/fashion-mnist

The official files hold the same images. Takes the first 800 training and 200 test images of every
class, in the order of the files, and writes their pixels, class by class, with LZMA: labels are
implied, and images of one class side by side pack best. The same files and liblzma give the same
bytes.
"""

import argparse
import gzip
import lzma
from pathlib import Path

import numpy as np

from neural_similarity.lab.data.fashion_mnist import EACH, FILE

TARGET = Path(__file__).parents[1] / "src/neural_similarity/lab/data/embedded" / FILE
# Four bits of context from the byte to the left and no alignment: the smallest for 28-byte rows.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def first_of_each(folder: Path, part: str, each: int) -> bytes:
    """The pixels of the first images of every class, class by class."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 8)
    return b"".join(pixels[labels == c][:each].tobytes() for c in range(10))


def read_idx(path: Path, header: int) -> np.ndarray:
    """The bytes of an IDX file after its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the four IDX files")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    arguments = parser.parse_args()
    parts = zip(("train", "t10k"), EACH, strict=True)
    content = b"".join(first_of_each(arguments.folder, *part) for part in parts)
    arguments.out.write_bytes(lzma.compress(content, format=lzma.FORMAT_XZ, filters=FILTERS))

"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): its four IDX files, and the packaged part."""

import gzip
import lzma
import struct
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from neural_similarity.files import open_file
from neural_similarity.lab.data.files import first_folder, suggest_download
from neural_similarity.lab.data.images import Dataset, Images

NAME, FOLDER = "fashion-mnist", "fashion-mnist"
CLASSES = (
    "T-shirt/top",
    *"Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".split(),
    "Ankle boot",
)
PREFIXES = ("train", "t10k")
UNSIGNED_BYTE = 8
FILE = "fashion-mnist-10k.xz"
EACH = (800, 200)
"""Images of every class in the training and the test part."""


def load_fashion_mnist(root: Path, counts: tuple[int, int] = (60_000, 10_000)) -> Dataset:
    """Read the files from fashion-mnist, torchvision's FashionMNIST/raw, or `root` itself."""
    with suggest_download(NAME, root):
        folder = find_fashion_mnist(root)
        train, test = (read_part(folder, *part) for part in zip(PREFIXES, counts, strict=True))
    return Dataset(NAME, train, test)


def find_fashion_mnist(root: Path) -> Path:
    """The folder below `root` that holds the files, or where they belong if there are none."""
    names = [
        name for part in PREFIXES for stem in _file_stems(part) for name in (stem, f"{stem}.gz")
    ]
    belongs = root / FOLDER
    folders = (belongs, root / "FashionMNIST" / "raw", root / "raw", root)
    return first_folder(folders, names) or belongs


def read_part(folder: Path, prefix: str, count: int) -> Images:
    """The images and labels of the part "train" or "t10k", of which there must be `count`."""
    pixels, labels = _file_stems(prefix)
    return Images(
        torch.from_numpy(_read_idx(folder / pixels, (count, 28, 28)))[:, None],
        torch.from_numpy(_read_labels(folder / labels, count)),
        CLASSES,
    )


def _file_stems(prefix: str) -> tuple[str, str]:
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _read_labels(path: Path, count: int) -> np.ndarray:
    labels = _read_idx(path, (count,)).astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise ValueError(f"{path} must hold labels below {len(CLASSES)}, got {labels.max()}")
    return labels


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array of an IDX file, `path` or `path`.gz, which must have this shape.

    An IDX file is a magic number (type and number of axes), the axes, and the values.
    """
    path = path if path.is_file() else path.with_name(f"{path.name}.gz")
    header = struct.pack(f">{1 + len(shape)}I", UNSIGNED_BYTE << 8 | len(shape), *shape)
    size = len(header) + int(np.prod(shape))
    content = _read_start(path, size + 1)
    if not content.startswith(header) or len(content) != size:
        raise ValueError(
            f"{path} must be an IDX file of uint8 {shape}: {size:,} bytes that begin with "
            f"{header.hex()}, got {'more' if len(content) > size else f'{len(content):,}'} bytes "
            f"that begin with {content[: len(header)].hex()}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def _read_start(path: Path, count: int) -> bytes:
    """The first bytes of a file, unpacked: what a few bytes unpack to may fill the memory."""
    try:
        with open_file(path) as file:
            return (gzip.open(file) if path.suffix == ".gz" else file).read(count)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, got a damaged one: {error}") from error


def load_embedded() -> Dataset:
    """The first 800 training and 200 test images of every class of Fashion-MNIST.

    Classes alternate, so that image i has the label i mod 10 and every prefix is balanced.
    `scripts/make_embedded.py` made the file.
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

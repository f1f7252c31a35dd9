"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in their official layouts, binary and pickled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch

from neural_similarity.files import read_bytes, read_text
from neural_similarity.lab.data.files import suggest_download
from neural_similarity.lab.data.images import Dataset, Images
from neural_similarity.lab.data.unpickling import unpickle_arrays

CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
BATCH_NAMES = tuple(f"data_batch_{i}" for i in range(1, 6))
PIXELS = 3 * 32 * 32
T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """One official form of a set.

    Args:
        folder: where it is.
        train: files of the training part.
        test: files of the test part.
        names: file of the class names, one a line or pickled.
        labels: bytes before the pixels of a binary record, of which the last is the label; or the
            key of the labels in a pickle.
        key: of the class names in a pickle.
    """

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    labels: int | str
    key: str = ""


@dataclass(frozen=True)
class Cifar:
    """One of the two sets. The layouts come in the order of preference."""

    name: str
    layouts: tuple[Layout, ...]
    class_count: int
    classes: tuple[str, ...] | None = None
    """Names to use where the file of names is missing; None needs the file."""


BATCH_FILES = tuple(f"{name}.bin" for name in BATCH_NAMES)
CIFAR10 = Cifar(
    "cifar10",
    (
        Layout("cifar-10-batches-bin", BATCH_FILES, ("test_batch.bin",), "batches.meta.txt", 1),
        Layout(
            "cifar-10-batches-py",
            BATCH_NAMES,
            ("test_batch",),
            "batches.meta",
            "labels",
            "label_names",
        ),
    ),
    10,
    CIFAR10_CLASSES,
)
CIFAR100 = Cifar(  # A binary record has the coarse label, then the fine one, which we use.
    "cifar100",
    (
        Layout("cifar-100-binary", ("train.bin",), ("test.bin",), "fine_label_names.txt", 2),
        Layout(
            "cifar-100-python", ("train",), ("test",), "meta", "fine_labels", "fine_label_names"
        ),
    ),
    100,
)
CIFARS = {each.name: each for each in (CIFAR10, CIFAR100)}


def load_cifar(cifar: Cifar, root: Path, counts: tuple[int, int] = (50_000, 10_000)) -> Dataset:
    """Read the first layout that has a file below `root`, or in `root` itself.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or holds something else.
    """
    with suggest_download(cifar.name, root):
        folder, layout = _find_layout(cifar, root)
        classes = _class_names(cifar, layout, folder)
        train, test = (
            _read_part([folder / file for file in files], count, layout, classes)
            for files, count in zip((layout.train, layout.test), counts, strict=True)
        )
    return Dataset(cifar.name, train, test)


def find_cifar(cifar: Cifar, root: Path) -> Path:
    """The folder below `root` that holds the files, or where they belong if there are none."""
    return _find_layout(cifar, root)[0]


def _find_layout(cifar: Cifar, root: Path) -> tuple[Path, Layout]:
    for layout in cifar.layouts:
        for folder in (root / layout.folder, root):
            if any((folder / name).is_file() for name in layout.train + layout.test):
                return folder, layout
    return root / cifar.layouts[0].folder, cifar.layouts[0]


def _class_names(cifar: Cifar, layout: Layout, folder: Path) -> tuple[str, ...]:
    path = folder / layout.names
    if cifar.classes and not path.exists():
        return cifar.classes
    names = unpickle_arrays(path).get(layout.key) if layout.key else read_text(path).split()
    if not _is_list_of(names, str):
        raise ValueError(f"{path} must hold {layout.key!r}, a list of names, got {type(names)}")
    if len(names) != cifar.class_count:
        raise ValueError(f"{path} must name {cifar.class_count} classes, got {len(names)}")
    return tuple(names)


def _read_part(paths: list[Path], count: int, layout: Layout, classes: tuple[str, ...]) -> Images:
    records = [_read_file(path, count // len(paths), layout) for path in paths]
    for path, (_, labels) in zip(paths, records, strict=True):
        if max(labels) >= len(classes):
            raise ValueError(f"{path} must hold labels below {len(classes)}, got {max(labels)}")
    pixels = np.concatenate([pixels for pixels, _ in records]).reshape(-1, 3, 32, 32)
    labels = [label for _, labels in records for label in labels]
    return Images(torch.from_numpy(pixels), torch.tensor(labels), classes)


def _read_file(path: Path, count: int, layout: Layout) -> tuple[np.ndarray, list[int]]:
    """Pixels, uint8 (count, 3072), and labels of the images of one file."""
    if isinstance(layout.labels, int):
        size = layout.labels + PIXELS
        records = np.frombuffer(read_bytes(path, size=count * size), np.uint8).reshape(count, size)
        return records[:, layout.labels :], records[:, layout.labels - 1].tolist()
    content = unpickle_arrays(path)
    pixels, labels = content.get("data"), content.get(layout.labels)
    came = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels)
    if came != f"uint8 {(count, PIXELS)}":
        raise ValueError(f"{path} must hold 'data', uint8 ({count}, {PIXELS}), got {came}")
    if not _is_list_of(labels, int) or len(labels) != count or min(labels) < 0:
        raise ValueError(f"{path} must hold {layout.labels!r}, a list of {count} class numbers")
    return np.asarray(pixels), labels


def _is_list_of(value: Any, item_class: type[T]) -> TypeGuard[list[T]]:
    return isinstance(value, list) and all(isinstance(item, item_class) for item in value)

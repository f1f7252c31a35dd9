"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in their two official layouts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from neural_similarity.lab.data.cifar_files import (
    Records,
    read_binary,
    read_names,
    read_pickled,
    read_pickled_names,
)
from neural_similarity.lab.data.files import first_folder, remedy
from neural_similarity.lab.data.images import Dataset, Images

CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


@dataclass(frozen=True)
class Layout:
    """One official form of a set: its files, how to read them, and where the class names are."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[Path, int], Records]
    names: str
    read_names: Callable[[Path], tuple[str, ...]]


@dataclass(frozen=True)
class Cifar:
    """One of the two sets. The layouts come in the order of preference."""

    name: str
    layouts: tuple[Layout, ...]
    class_count: int
    classes: tuple[str, ...] | None = None
    """Names to use where the file of names is missing; None needs the file."""


CIFAR10 = Cifar(
    "cifar10",
    (
        Layout(
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in BATCHES),
            ("test_batch.bin",),
            partial(read_binary, labels=1),
            "batches.meta.txt",
            read_names,
        ),
        Layout(
            "cifar-10-batches-py",
            BATCHES,
            ("test_batch",),
            partial(read_pickled, labels="labels"),
            "batches.meta",
            partial(read_pickled_names, key="label_names"),
        ),
    ),
    10,
    CIFAR10_CLASSES,
)
CIFAR100 = Cifar(
    "cifar100",
    (
        Layout(
            "cifar-100-binary",
            ("train.bin",),
            ("test.bin",),
            partial(read_binary, labels=2),  # the coarse label, then the fine one, which we use
            "fine_label_names.txt",
            read_names,
        ),
        Layout(
            "cifar-100-python",
            ("train",),
            ("test",),
            partial(read_pickled, labels="fine_labels"),
            "meta",
            partial(read_pickled_names, key="fine_label_names"),
        ),
    ),
    100,
)


def load_cifar(cifar: Cifar, root: Path, counts: tuple[int, int] = (50_000, 10_000)) -> Dataset:
    """Read the first layout that has a file below `root`, or in `root` itself.

    Args:
        cifar: which of the sets.
        root: folder of the data sets.
        counts: images that the two parts must hold.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or holds something else.
    """
    with remedy(cifar.name, root):
        folder, layout = _find(cifar, root)
        classes = _classes(cifar, layout, folder)
        train, test = (
            _read_part([folder / file for file in files], count, layout, classes)
            for files, count in zip((layout.train, layout.test), counts, strict=True)
        )
    return Dataset(cifar.name, train, test)


def find_cifar(cifar: Cifar, root: Path) -> Path:
    """The folder below `root` that holds the files, or where they belong if there are none."""
    return _find(cifar, root)[0]


def _find(cifar: Cifar, root: Path) -> tuple[Path, Layout]:
    for layout in cifar.layouts:
        if folder := first_folder((root / layout.folder, root), layout.train + layout.test):
            return folder, layout
    return root / cifar.layouts[0].folder, cifar.layouts[0]


def _classes(cifar: Cifar, layout: Layout, folder: Path) -> tuple[str, ...]:
    path = folder / layout.names
    if cifar.classes and not path.exists():
        return cifar.classes
    classes = layout.read_names(path)
    if len(classes) != cifar.class_count:
        raise ValueError(f"{path} must name {cifar.class_count} classes, got {len(classes)}")
    return classes


def _read_part(paths: list[Path], count: int, layout: Layout, classes: tuple[str, ...]) -> Images:
    records = [layout.read(path, count // len(paths)) for path in paths]
    for path, (_, labels) in zip(paths, records, strict=True):
        if labels.max() >= len(classes):
            raise ValueError(f"{path} must hold labels below {len(classes)}, got {labels.max()}")
    pixels, labels = (np.concatenate(parts) for parts in zip(*records, strict=True))
    return Images(
        torch.from_numpy(pixels.reshape(-1, 3, 32, 32)),
        torch.from_numpy(labels.astype(np.int64)),
        classes,
    )

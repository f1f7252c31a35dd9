"""Readers of the files that CIFAR consists of."""

from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np

from neural_similarity.lab.data.files import read_bytes
from neural_similarity.lab.data.unpickling import unpickle

PIXELS = 3 * 32 * 32
T = TypeVar("T")
Records = tuple[np.ndarray, np.ndarray]
"""Pixels, uint8 (n, 3072), and labels (n,) of the images of one file."""


def read_binary(path: Path, count: int, *, labels: int) -> Records:
    """Read `count` records of `labels` label bytes, of which the last counts, and the pixels."""
    content = read_bytes(path, size=count * (labels + PIXELS))
    records = np.frombuffer(content, np.uint8).reshape(count, labels + PIXELS)
    return records[:, labels:], records[:, labels - 1]


def read_names(path: Path) -> tuple[str, ...]:
    """Read one name a line."""
    return tuple(read_bytes(path).decode().split())


def read_pickled(path: Path, count: int, *, labels: str) -> Records:
    """Read `count` images of a pickled dictionary that has their labels under the key `labels`."""
    content = unpickle(path)
    pixels, found = content.get("data"), content.get(labels)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape != (count, PIXELS)
    ):
        came = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels)
        raise ValueError(f"{path} must hold 'data', uint8 ({count}, {PIXELS}), got {came}")
    if not _is_list_of(found, int) or len(found) != count or min(found) < 0:
        raise ValueError(f"{path} must hold {labels!r}, a list of {count} class numbers")
    return pixels, np.array(found)


def read_pickled_names(path: Path, *, key: str) -> tuple[str, ...]:
    """Read the list of names under `key` of a pickled dictionary."""
    names = unpickle(path).get(key)
    if not _is_list_of(names, str):
        raise ValueError(f"{path} must hold {key!r}, a list of names, got {type(names)}")
    return tuple(names)


def _is_list_of(value: Any, kind: type[T]) -> TypeGuard[list[T]]:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)

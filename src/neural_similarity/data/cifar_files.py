"""Readers of the files that CIFAR consists of. Pickles may name arrays and nothing else."""

import codecs
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np

from neural_similarity.data.files import read_bytes

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


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary of a pickle that names arrays and plain values only.

    Raises:
        ValueError: it names anything else, which could run code, or is damaged.
    """
    content = read_bytes(path)
    try:
        value = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to ask for
        raise ValueError(f"{path} must be a pickle of arrays and lists: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(value)}")
    return value


def _encode(text: str, encoding: str) -> bytes:
    """What Python 3 writes for bytes in an old pickle; other codecs could inflate or import."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is refused")
    return codecs.latin_1_encode(text)[0]


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _encode,
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and plain values; any other global could run code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return ALLOWED[f"{module_name}.{global_name}"]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the global {module_name}.{global_name} is refused"
            ) from None

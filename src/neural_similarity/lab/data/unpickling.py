"""Pickles of arrays and plain values, read without running what they contain."""

import codecs
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neural_similarity.lab.data.files import read_bytes


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
_FROM_BUFFER: Any = np.empty(0).__reduce_ex__(5)[0]
ALLOWED: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.core.numeric._frombuffer": _FROM_BUFFER,
    "numpy._core.numeric._frombuffer": _FROM_BUFFER,
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

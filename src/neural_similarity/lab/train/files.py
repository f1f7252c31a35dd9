"""Files of results, written and read in one way, and locks."""

import base64
import json
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from neural_similarity.files import read_json, write_text
from neural_similarity.lab.errors import CONTENT_ERRORS, reason_of
from neural_similarity.lab.folders import hold_lock as hold_lock

Result = TypeVar("Result")


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write a file of results, see `record_layout`; its folder is created."""
    write_text(path, record_layout(content))


def read_result(path: Path, what: str, parse: Callable[[Any], Result]) -> Result:
    """What `parse` makes of the JSON in a file of results.

    Raises:
        ValueError: the content is not `what`, such as "a run record"; the error names the file.
    """
    try:
        return parse(read_json(path))
    except CONTENT_ERRORS as error:
        raise ValueError(f"{path} cannot be read as {what}: {reason_of(error)}") from error


def record_layout(content: dict[str, Any]) -> str:
    """JSON with one entry per line, so that records read and compare well in git."""
    lines = (f"  {json.dumps(key)}: {_layout_value(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _layout_value(value: Any) -> str:
    if not value or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
    else:
        entries = [json.dumps(entry) for entry in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n    " + ",\n    ".join(entries) + f"\n  {closing}"


def check_fields(content: Any, kinds: Mapping[str, Any]) -> None:
    """Check the types of fields of JSON, by their dotted names; optional ones may be None.

    Raises:
        TypeError: a field has another type, or a number that is not finite or has over 64 bits.
    """
    for name, kind in kinds.items():
        value = reduce(lambda part, key: part.get(key), name.split("."), content)
        number = isinstance(value, int | float)
        if not isinstance(value, kind) or (number and not abs(value) < 2**63):
            raise TypeError(f"`{name}` is {value!r:.80}")


def pack_correct(correct: Tensor) -> dict[str, Any]:
    """Answers (n,) as JSON: their number, and in base64 their bits or, for counts, 16-bit words.

    Booleans say whether each image was classified correctly, integers how many queries of each
    task were.
    """
    if correct.dtype == torch.bool:
        unit, packed = "images", np.packbits(correct.numpy())
    else:
        unit, packed = "tasks", correct.numpy().astype("<u2")
    return {unit: len(correct), "packed": base64.b64encode(packed.tobytes()).decode("ascii")}


def unpack_correct(record: Mapping[str, Any]) -> Tensor:
    """The booleans or int64 counts (n,) that `pack_correct` described."""
    unit = "images" if "images" in record else "tasks"
    count, packed = record[unit], base64.b64decode(record["packed"], validate=True)
    size = 2 * count if unit == "tasks" else -(-count // 8)
    if len(packed) != size:
        raise ValueError(f"`packed` must hold {size} bytes for {count} {unit}, got {len(packed)}")
    if unit == "tasks":
        return torch.from_numpy(np.frombuffer(packed, "<u2").astype(np.int64))
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
    return torch.from_numpy(bits.astype(bool))

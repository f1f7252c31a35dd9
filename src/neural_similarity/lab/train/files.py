"""The JSON layout of records, and lock files."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import IO, Any

from neural_similarity.files import locked_file
from neural_similarity.lab.errors import RunError


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
    """Check fields of JSON: `kinds` has their types by dotted names, with None if one is optional.

    Raises:
        TypeError: a field has another type, or a number that is not finite or has over 64 bits.
    """
    for name, kind in kinds.items():
        value = reduce(lambda part, key: part.get(key), name.split("."), content)
        number = isinstance(value, int | float)
        if not isinstance(value, kind) or (number and not abs(value) < 2**63):
            raise TypeError(f"`{name}` is {value!r:.80}")


@contextlib.contextmanager
def hold_lock(path: Path, taken: str) -> Iterator[IO[bytes]]:
    """Open a file for appending, locked against other processes.

    `taken` is the message of the error if another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(locked_file(path))
        except BlockingIOError:
            raise RunError(taken) from None
        yield file

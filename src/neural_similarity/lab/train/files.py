"""Atomic writes: a file or folder appears whole or not at all, even if the process is killed."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from neural_similarity.lab.data.files import beside, lock, named, new_file
from neural_similarity.lab.data.files import read_json as read_json
from neural_similarity.lab.data.files import sync as sync
from neural_similarity.lab.errors import RunError


def write_json(path: Path, value: Any) -> None:
    """Write `value`, indented; an earlier file stays until the new one is complete."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path`, flush it to the disk and rename it into place."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def layout(content: dict[str, Any]) -> str:
    """JSON with one entry per line, so that records read and compare well in git."""
    lines = (f"  {json.dumps(key)}: {_value(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    if not value or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
    else:
        entries = [json.dumps(entry) for entry in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n    " + ",\n    ".join(entries) + f"\n  {closing}"


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty folder beside `path`; its files are flushed and it is renamed to `path`.

    After an error the new one is gone.

    Args:
        path: where it goes.
        replace: whether a folder that is there already gives way. If not, and it holds anything,
            that is an error, also where it came in the meantime.

    Raises:
        OSError: it cannot be written, or must not be replaced.
    """
    with named(path):
        temporary = beside(path)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.iterdir():
                sync(file)
            if replace and path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(path.parent)


@contextlib.contextmanager
def locked(path: Path, taken: str) -> Iterator[IO[bytes]]:
    """Open a file for appending, locked against other processes.

    A child process that inherits the file keeps the lock until it ends.

    Args:
        path: the file; it is made where it is missing.
        taken: what to say if another process has it.

    Raises:
        RunError: another process has.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            lock(file.fileno(), wait=False)
        except BlockingIOError:
            raise RunError(taken) from None
        yield file


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

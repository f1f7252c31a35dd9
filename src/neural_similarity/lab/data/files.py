"""Finding and reading the files of a data set, with errors that say what to do."""

import contextlib
import glob
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial"
Progress = Callable[[int, int | None], None]
"""Called with how many images or bytes are done, and of how many, None if unknown."""
MOST_BYTES, MOST_TEXT = 2 << 30, 64 << 20
"""The most bytes that a file may hold, so that an error comes before memory runs out."""


def first_folder(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of `folders` that holds a file with one of `names`."""
    return next((f for f in folders if any((f / name).is_file() for name in names)), None)


def read_bytes(path: Path, size: int | None = None, most: int = MOST_BYTES) -> bytes:
    """The content of `path`.

    Raises:
        FileNotFoundError: there is no such file; a pipe, which would be read for ever, counts so.
        ValueError: its size is not `size`, or above `most`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    found = path.stat().st_size
    if size is not None and found != size:
        raise ValueError(f"{path} must hold {size:,} bytes, got {found:,}")
    if found > most:
        raise ValueError(f"{path} must hold at most {most:,} bytes, got {found:,}")
    return path.read_bytes()


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """The text of `path`, as `read_bytes`, without the byte-order mark that Excel writes.

    Raises:
        ValueError: it is not in UTF-8.
    """
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be in UTF-8, got {error}") from error


def read_json(path: Path, most: int = MOST_TEXT) -> Any:
    """The value in `path`, as `read_text`.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(read_text(path, most))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} must be JSON, got {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a name beside `path`; what was written there is flushed and renamed to `path`.

    After an error it is gone: where the disk is full, it would take what space there was.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    with named(path):
        fresh = beside(path)
        try:
            yield fresh
            sync(fresh)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync(path.parent)


def beside(path: Path) -> Path:
    """A name beside `path` of this process alone; leftovers of killed processes are removed."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
        process = old.name.split(".")[-2]
        if process == str(os.getpid()) or not _lives(process):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


def _lives(process: str) -> bool:
    if sys.platform == "win32":  # Where `os.kill` ends a process, whatever the signal.
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the file being written in errors of the disk, such as a full one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk; Windows opens no folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    # Windows flushes only what may be written to.
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or folder against other processes, except on Windows.

    Raises:
        BlockingIOError: another process has it, and this one is not to wait.
    """
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def remedy(name: str, root: Path) -> Iterator[None]:
    """Add to errors about the files of the data set `name` how to get good ones."""
    command = f"run `nsim data {name} --data {root}`"
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {command}, or name its folder with --data") from error
    except ValueError as error:
        raise ValueError(f"{error}; delete the file and {command}") from error

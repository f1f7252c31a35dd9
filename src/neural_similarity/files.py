"""Files: one writer for every output, whole or not at all, and one reader for every input.

Importing it loads no torch.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial"
MOST_BYTES, MOST_TEXT = 2 << 30, 64 << 20
"""The most bytes that a file may hold, so that an error comes before memory runs out."""


def write_json(path: Path, value: Any) -> None:
    """Write `value`, indented; an earlier file stays until the new one is complete."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path`, flush it to the disk and rename it into place."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a name beside `path`; the file written there is flushed and renamed to `path`.

    The folder is created. After an error the new file is removed: on a full disk it would take up
    the last space.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = _hidden_path(path)
        try:
            yield fresh
            sync_path(fresh)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_path(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty folder beside `path`; its files are flushed and it is renamed to `path`.

    After an error the new folder is removed.

    Args:
        path: the folder to make.
        replace: whether an existing folder is replaced. If not, one that holds anything is an
            error, also if it was made in the meantime.

    Raises:
        OSError: it cannot be written, or must not be replaced.
    """
    with disk_errors(path):
        temporary = _hidden_path(path)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.iterdir():
                sync_path(file)
            if replace and path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_path(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder; an interrupted removal leaves a hidden one, see `remove_leftovers`."""
    shutil.rmtree(path.rename(_hidden_path(path)))


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove files and folders that killed processes left half written or half removed.

    Only names of `_hidden_path` are touched; anything else in the folder is not ours.

    Args:
        folder: the folder to search; it may be missing.
        names: a regular expression of the names that they would have, or had.
    """
    hidden = re.compile(rf"\.(?:{names})\.(?P<process>[1-9][0-9]*){re.escape(PARTIAL)}")
    for old in folder.iterdir() if folder.is_dir() else ():
        match = hidden.fullmatch(old.name)
        if match is None:
            continue
        process = int(match["process"])
        if process != os.getpid() and is_running(process):
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def _hidden_path(path: Path) -> Path:
    """A name beside `path` of this process alone; leftovers of killed processes are removed."""
    remove_leftovers(path.parent, re.escape(path.name))
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


def is_running(process: int) -> bool:
    """Whether a process of this machine lives, or has not been collected yet by its parent."""
    if sys.platform == "win32":  # Where `os.kill` ends a process, whatever the signal.
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Name the file being written in errors of the disk, such as a full one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_path(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk; Windows opens no folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    # Windows flushes only what may be written to.
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or folder against other processes, except on Windows.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is False.
    """
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_bytes(path: Path, size: int | None = None, most: int = MOST_BYTES) -> bytes:
    """The content of `path`.

    Raises:
        FileNotFoundError: it is not a regular file; reading a pipe might never end.
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
        ValueError: it is not JSON, or nested too deeply to be read.
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except ValueError as error:  # also for a number with too many digits
        raise ValueError(f"{path} must be JSON, got {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def file_digest(path: Path) -> str:
    """Hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""One writer for every output, whole or not at all, and one reader for every input.

The writer works under a hidden name beside the target (`hidden.py`), and renames it when its
content is on the disk. Importing this loads no torch.
"""

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from neural_similarity.hidden import ADDED_BYTES, ALWAYS, NO_LINK, PARTIAL, hidden_name
from neural_similarity.hidden import remove_leftovers as remove_leftovers

MOST_BYTES, MOST_TEXT = 2 << 30, 64 << 20
"""The most bytes that a file may hold, so that an error comes before memory runs out."""
_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def write_json(path: Path, value: Any) -> None:
    """Write `value`, indented; an earlier file stays until the new one is complete."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8, as `new_file`; surrogates, as of odd file names, are ValueErrors."""
    content = encoded_text(path, text)
    with new_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an open file that becomes `path` when it is whole, with the mode that umask gives.

    The folder is made. `file.name` is the hidden name until then. After an error the new file is
    gone: where the disk is full, it would take what space there was.

    Raises:
        ValueError: as `check_target`.
        OSError: it cannot be written; the error names `path`.
    """
    check_target(path)
    with disk_errors(path), hidden_name(path, partial(Path.touch, exist_ok=False)) as fresh:
        with fresh.open("r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_target(path)
        fresh.replace(path)
        sync_path(path.parent)


def encoded_text(path: Path, text: str) -> bytes:
    """`text` in UTF-8, or a `ValueError` that names the file."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} takes text in UTF-8, got {error}") from error


def remove_file(path: Path) -> None:
    """Remove a regular file, if it is there; anything else stays."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def check_target(path: Path, *, folder: bool = False) -> None:
    """Check that `path` can be written: a regular file, or a folder, or nothing yet.

    Raises:
        ValueError: it is anything else, as a link or a device, or its name is too long for the
            disk, hidden names included.
    """
    most, length = _most_bytes(path) - ADDED_BYTES, len(os.fsencode(path.name))
    if length > most:
        raise ValueError(f"{path} must have a name of at most {most} bytes, got {length}")
    with contextlib.suppress(FileNotFoundError):
        kind = "folder" if folder else "regular file"
        _require_kind(path, path.lstat(), kind, " or not exist")


def _most_bytes(path: Path) -> int:
    """How many bytes a name beside `path` may have."""
    if not hasattr(os, "pathconf"):  # On Windows.
        return 255
    return os.pathconf(next(f for f in path.absolute().parents if f.is_dir()), "PC_NAME_MAX")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Name the file being written, not its hidden name, in errors of the disk, as a full one."""
    try:
        yield
    except OSError as error:
        other = error.filename is not None and not str(error.filename).endswith(PARTIAL)
        if error.errno is None or other:
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


def open_file(path: Path, *, within: Path | None = None) -> BufferedReader:
    """Open a regular file to be read. A link to one is followed.

    Args:
        path: the file.
        within: the folder that the file must lie in, links resolved, as a run folder that comes
            from others: they could link a private file into it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a regular file, as a pipe, which would be waited for, or it lies
            outside of `within`.
    """
    try:
        _require_kind(path, path.stat(), "regular file")
        real = path if within is None else path.resolve()
        if within is not None and not real.is_relative_to(within.resolve()):
            raise ValueError(f"{path} must lie in {within}, got a link to {real}")
        flags = os.O_RDONLY | ALWAYS | (NO_LINK if within else 0)
        file = os.fdopen(os.open(real, flags), "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is missing") from None
    try:
        _require_kind(path, os.fstat(file.fileno()), "regular file")
    except ValueError:
        file.close()
        raise
    return file


def _require_kind(path: Path, state: os.stat_result, expected: str, rest: str = "") -> None:
    here = _KINDS.get(stat.S_IFMT(state.st_mode), "special file")
    if here != expected:
        raise ValueError(f"{path} must be a {expected}{rest}, got a {here}")


def regular_file(path: Path, *, within: Path | None = None) -> Path:
    """`path`, checked as by `open_file`: for readers that take names, no open files."""
    open_file(path, within=within).close()
    return path


def read_bytes(
    path: Path, *, size: int | None = None, most: int = MOST_BYTES, within: Path | None = None
) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as `open_file`, or its size is not `size`, or above `most`.
    """
    with open_file(path, within=within) as file:
        length = os.fstat(file.fileno()).st_size
        if size is not None and length != size:
            raise ValueError(f"{path} must hold {size:,} bytes, got {length:,}")
        if length > most:
            raise ValueError(f"{path} must hold at most {most:,} bytes, got {length:,}")
        return file.read()


def read_text(path: Path, *, most: int = MOST_TEXT, within: Path | None = None) -> str:
    """The text of a file in UTF-8, as `read_bytes`, without the byte-order mark of Excel."""
    try:
        return read_bytes(path, most=most, within=within).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be in UTF-8, got {error}") from error


def read_json(path: Path, *, most: int = MOST_TEXT, within: Path | None = None) -> Any:
    """The value in a file of JSON, as `read_text`; one that is nested too deeply is refused."""
    text = read_text(path, most=most, within=within)
    try:
        return json.loads(text)
    except ValueError as error:  # of JSON, or of a number of too many digits
        raise ValueError(f"{path} must be JSON, got {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def file_digest(path: Path, *, within: Path | None = None) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with open_file(path, within=within) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

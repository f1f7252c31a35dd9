"""What runs need besides `neural_similarity.files`: whole folders, logs that grow, and locks."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from neural_similarity.files import check_target, disk_errors, encoded_text, sync_path
from neural_similarity.hidden import ALWAYS, NO_LINK, hidden_folder, hidden_name, lock_file
from neural_similarity.lab.errors import RunError


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when all is written; write by `new_file` into it.

    After an error the new one is gone.

    Args:
        path: where it goes.
        replace: whether a folder that is there already gives way. If not, and it holds anything,
            that is an error, also where it came in the meantime.

    Raises:
        ValueError: as `check_target`.
        OSError: it cannot be written, or must not be replaced.
    """
    check_target(path, folder=True)
    with disk_errors(path), hidden_name(path, Path.mkdir) as fresh:
        yield fresh
        _rename_folder(fresh, path, replace)
        sync_path(path.parent)


def _rename_folder(fresh: Path, path: Path, replace: bool) -> None:
    """Rename; what is there already, also of another process in the meantime, gives way."""
    while True:
        try:
            fresh.rename(path)
            return
        except OSError as error:
            if not replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there; cut short, it leaves a hidden one."""
    if not path.is_dir() or path.is_symlink():
        return
    with hidden_folder(path) as gone, contextlib.suppress(FileNotFoundError):
        path.rename(gone)  # The error is that another process was faster.


def append_text(path: Path, text: str) -> None:
    """Append `text` in UTF-8 to a file; errors are those of `write_text`."""
    content = encoded_text(path, text)
    with disk_errors(path), _open_append(path) as file:
        file.write(content)


@contextlib.contextmanager
def hold_lock(path: Path, taken: str) -> Iterator[BinaryIO]:
    """Open a file for appending, locked against other processes; it is made where it is missing.

    A child process that inherits the file keeps the lock until it ends.

    Raises:
        RunError: another process has it; `taken` is the message.
        ValueError, OSError: as `new_file`.
    """
    with _open_append(path) as file:
        try:
            lock_file(file.fileno(), wait=False)
        except BlockingIOError:
            raise RunError(taken) from None
        yield file


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Wait until no other process has a folder locked, and keep others out."""
    if sys.platform == "win32":  # It opens no folders.
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # of file systems that lock no folders
            lock_file(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _open_append(path: Path) -> BinaryIO:
    check_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | ALWAYS | NO_LINK
    return os.fdopen(os.open(path, flags, 0o666), "ab")

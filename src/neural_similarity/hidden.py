"""Hidden names beside a file or folder that is being written: made, locked and removed.

A name is `.NAME.NUMBER.partial`, locked while it is in use. One that nobody has locked is left from
a process that was killed; the next writer of the same target removes it, and nothing else.
"""

import contextlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial"
ADDED_BYTES = len(f"..0123456789{PARTIAL}")
"""What a hidden name has more than the target's."""
ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
"""Flags of every opening: nothing waits for a pipe's other end or takes over a terminal."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@contextlib.contextmanager
def hidden_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder, a leftover of `path` where this process is killed; then remove it."""
    with hidden_name(path, Path.mkdir) as folder:
        yield folder
        _remove_hidden(folder)


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove what killed processes left of files and folders that were written or removed.

    Args:
        folder: where they are, or nothing.
        names: a regular expression of the names that they would have, or had.
    """
    hidden = re.compile(rf"\.(?:{names})\.[1-9][0-9]*{re.escape(PARTIAL)}")
    for other in folder.iterdir() if folder.is_dir() else ():
        if hidden.fullmatch(other.name):
            with contextlib.suppress(OSError), _claim_hidden(other) as mine:
                if mine:
                    _remove_hidden(other)


@contextlib.contextmanager
def hidden_name(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Make a file or folder beside `path` for this writer alone; after an error it is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, re.escape(path.name))
    for number in itertools.count(os.getpid()):  # Threads, and containers, have one in common.
        fresh = path.with_name(f".{path.name}.{number}{PARTIAL}")
        try:
            make(fresh)
        except FileExistsError:
            continue
        with _claim_hidden(fresh) as mine:
            if mine is False:
                continue
            try:
                yield fresh
            except BaseException:
                _remove_hidden(fresh)
                raise
            return


@contextlib.contextmanager
def _claim_hidden(path: Path) -> Iterator[bool | None]:
    """Lock a hidden name; False where another process has it, None where there are no locks."""
    if sys.platform == "win32":
        yield None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | ALWAYS | NO_LINK)
    except FileNotFoundError:  # Another process took it for a leftover.
        yield False
        return
    try:
        yield _lock_matches(descriptor, path)
    finally:
        os.close(descriptor)


def _lock_matches(descriptor: int, path: Path) -> bool | None:
    """Lock what was opened at `path`, and see whether that has the name still."""
    try:
        lock_file(descriptor, wait=False)
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # of file systems that have no locks
        return None


def _remove_hidden(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def lock_file(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or folder, except on Windows; BlockingIOError where another has it."""
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

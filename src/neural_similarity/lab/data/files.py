"""Finding and reading the files of a data set, with errors that say what to do."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Progress = Callable[[int, int | None], None]
"""Told how many images or bytes are done, and of how many, None where that is not known."""


def first_folder(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of `folders` that holds a file with one of `names`."""
    return next((f for f in folders if any((f / name).is_file() for name in names)), None)


def read_bytes(path: Path, size: int | None = None) -> bytes:
    """The content of `path`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: its size is not `size`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    content = path.read_bytes()
    if size is not None and len(content) != size:
        raise ValueError(f"{path} must hold {size:,} bytes, got {len(content):,}")
    return content


@contextlib.contextmanager
def remedy(name: str, root: Path) -> Iterator[None]:
    """Add to an error about a file of the data set `name` how to get a good one."""
    command = f"run `nsim data {name} --data {root}`"
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {command}, or name its folder with --data") from error
    except ValueError as error:
        raise ValueError(f"{error}; delete the file and {command}") from error

"""Errors about the files of a data set that say what to do, and the progress of reading them."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

ProgressCallback = Callable[[int, int | None], None]
"""Called with how many images or bytes are done, and of how many, None if unknown."""


@contextlib.contextmanager
def suggest_download(name: str, root: Path) -> Iterator[None]:
    """Add to errors about the files of the data set `name` how to get good ones."""
    command = f"run `nsim data {name} --data {root}`"
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {command}, or name its folder with --data") from error
    except ValueError as error:
        raise ValueError(f"{error}; delete the file and {command}") from error

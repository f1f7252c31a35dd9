"""Finding the files of a data set, with errors that say what to do."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ProgressCallback = Callable[[int, int | None], None]
"""Called with how many images or bytes are done, and of how many, None if unknown."""


def first_folder(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of `folders` that holds a file with one of `names`."""
    return next((f for f in folders if any((f / name).is_file() for name in names)), None)


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

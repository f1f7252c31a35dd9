"""Which image files a folder of class folders holds."""

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.lab.data.decoding import SUFFIXES

COLUMNS = ("filename", "label")


@dataclass(frozen=True)
class Listing:
    """The image files of one part of a data set, class by class."""

    folder: Path
    """The folder of the class folders."""
    classes: tuple[str, ...]
    """Names of the class folders, sorted."""
    names: tuple[tuple[str, ...], ...]
    """Of every class, the files below its folder, sorted, with / between folders."""
    sizes: tuple[tuple[int, ...], ...]
    """Their bytes."""
    folders: tuple[str, ...] = ()
    """Every folder below `folder` that was looked into."""

    @property
    def labels(self) -> list[int]:
        """The class of every file."""
        return [label for label, names in enumerate(self.names) for _ in names]

    @property
    def files(self) -> list[str]:
        """Every file below `folder`."""
        by_class = zip(self.classes, self.names, strict=True)
        return [f"{name}/{file}" for name, files in by_class for file in files]

    @property
    def paths(self) -> list[Path]:
        """Every file."""
        return [self.folder / file for file in self.files]


def list_images(folder: Path) -> Listing:
    """List the images of the class folders in `folder`; names that begin with a dot are left out.

    Raises:
        ValueError: there is no class folder, or one holds no image, or a name is no text.
    """
    classes, inner = class_folders(folder), list[str]()
    members = [_images_in(path, inner) for path in classes]
    for name in (*(path.name for path in classes), *(file for files in members for file in files)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"names in {folder} must be valid UTF-8, got {name!r}") from error
    return Listing(
        folder,
        tuple(path.name for path in classes),
        tuple(tuple(files) for files in members),
        tuple(tuple(files.values()) for files in members),
        tuple(os.path.relpath(path, folder) for path in inner),
    )


def listed_images(path: Path) -> list[tuple[str, str]]:
    """The file names in a list, a CSV file of `filename,label`, each with its label.

    Raises:
        ValueError: it is no text in UTF-8, has other columns, or a line lacks one.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # Excel begins with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be in UTF-8, got {error}") from error
    rows = csv.DictReader(lines)
    if not set(COLUMNS) <= set(rows.fieldnames or ()):
        wanted = " and ".join(COLUMNS)
        raise ValueError(f"{path} must have the columns {wanted}, got {rows.fieldnames}")
    found: list[tuple[str, str]] = []
    for row in rows:
        if not (row["filename"] and row["label"]):
            raise ValueError(
                f"{path} must have a filename and a label in every line, got "
                f"{lines[rows.line_num - 1]!r} in line {rows.line_num}"
            )
        found.append((row["filename"], row["label"]))
    return found


def class_folders(folder: Path) -> list[Path]:
    """The folders in `folder`, sorted.

    Raises:
        ValueError: there are none.
    """
    found = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not found:
        raise ValueError(f"{folder} must hold one folder for every class, got none")
    return found


def is_part(folder: Path) -> bool:
    """Whether a folder can be a part, one of class folders: it is there and no class itself.

    A class may be called train (CIFAR-100 has one): images lie in it, and no folders.
    """
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        inside = [entry for entry in entries if entry.name[0] != "."]
        return any(entry.is_dir() for entry in inside) or not any(map(_is_image, inside))


def check_classes(train: Listing, test: Listing) -> None:
    """Raise a `ValueError` naming a class that only one of two parts has."""
    for here, there in ((train, test), (test, train)):
        for name in here.classes:
            if name not in there.classes:
                raise ValueError(
                    f"both parts must have the same classes, got {name!r} in {here.folder} and "
                    f"not in {there.folder}"
                )


def _images_in(folder: Path, inner: list[str]) -> dict[str, int]:
    """Bytes of every image below `folder`, sorted by name; adds the folders on the way."""
    found = sorted(_walk(str(folder), "", inner), key=lambda file: file[0].split("/"))
    if not found:
        raise ValueError(f"{folder} must hold images ({' '.join(sorted(SUFFIXES))}), got none")
    return dict(found)


def _walk(folder: str, prefix: str, inner: list[str]) -> Iterator[tuple[str, int]]:
    inner.append(folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/", inner)
            elif _is_image(entry):
                yield prefix + entry.name, entry.stat().st_size


def _is_image(entry: os.DirEntry[str]) -> bool:
    return Path(entry.name).suffix.lower() in SUFFIXES

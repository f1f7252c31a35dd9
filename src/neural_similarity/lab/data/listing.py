"""Which image files a folder of class folders holds."""

import contextlib
import csv
import logging
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.files import read_text
from neural_similarity.lab.data.decoding import SUFFIXES, Header

LABEL_COLUMNS = ("filename", "label")
UNREAD = {
    ".arw", ".avif", ".cr2", ".cr3", ".dng", ".exr", ".gif", ".heic", ".heif", ".ico", ".jfif",
    ".jp2", ".jpe", ".jxl", ".nef", ".orf", ".pbm", ".pnm", ".psd", ".raf", ".rw2", ".svg", ".tga",
}  # fmt: skip
"""Formats of images that are not read, whose files are counted in the log."""
MOST_FILES_NAMED = 5
"""Files that a warning names."""
log = logging.getLogger(__name__)
PART_OF = {
    name: part
    for part, names in (
        ("train", ("train", "training")),
        ("val", ("val", "valid", "validation", "dev")),
        ("test", ("test", "testing")),
    )
    for name in names
}
"""The part that a folder name stands for, in upper or lower case."""


@dataclass(frozen=True)
class Listing:
    """The image files of one part of a data set, class by class.

    Args:
        folder: the folder of the class folders.
        members: of every class, the bytes of the files below its folder by their names; both are
            sorted, with / between folders.
    """

    folder: Path
    members: dict[str, dict[str, int]]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.members)

    @property
    def class_sizes(self) -> list[int]:
        return [len(files) for files in self.members.values()]

    @property
    def relative_files(self) -> list[str]:
        return [f"{name}/{file}" for name, files in self.members.items() for file in files]

    @property
    def file_paths(self) -> list[Path]:
        return [self.folder / file for file in self.relative_files]


def list_images(folder: Path, *, part: bool = True) -> Listing:
    """List the images of the class folders in `folder`; names that begin with a dot are left out.

    In a whole data set, which is no `part`, folders that are all called like parts are no classes.

    Raises:
        ValueError: there is no class folder, or one holds no image, or a name is no text, or a file
            cannot be read.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not classes:
        raise ValueError(f"{folder} must hold one folder for every class, got none")
    if not part and all(path.name.lower() in PART_OF for path in classes):
        names = ", ".join(path.name for path in classes)
        raise ValueError(f"{folder} must hold class folders inside of its parts {names}, got none")
    others = Counter[str]()
    members = {path.name: _list_folder(path, others) for path in classes}
    if others:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
        log.warning("Warning: in %s, images of other formats are left out: %s.", folder, counts)
    for name in (*members, *(file for files in members.values() for file in files)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"names in {folder} must be valid UTF-8, got {name!r}") from error
    _warn_of_lookalikes(folder, members)
    return Listing(folder, members)


def visible_name(name: str) -> str:
    """A name as it looks: disks keep an accent as part of its letter (NFC) or apart (NFD)."""
    return unicodedata.normalize("NFC", name)


def lookalike_text(name: str, names: Iterable[str]) -> str:
    """The end of an error about a name that `names` lack: one that looks the same, if any."""
    alike = [ascii(other) for other in names if visible_name(other) == visible_name(name)]
    return f"; there is {alike[0]}, which looks the same as {name!a}" if alike else ""


def _warn_of_lookalikes(folder: Path, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(visible_name(name), name)
        if other != name:
            log.warning(
                "Warning: in %s, the classes %s and %s look the same.",
                *(folder, ascii(other), ascii(name)),
            )


def warn_of_pages(headers: Iterable[Header]) -> None:
    """Name the files of which the first page alone is read."""
    paged = [header.path for header in headers if header.paged]
    if paged:
        more = (
            f" and {len(paged) - MOST_FILES_NAMED:,} more" if len(paged) > MOST_FILES_NAMED else ""
        )
        named = ", ".join(map(str, paged[:MOST_FILES_NAMED]))
        log.warning("Warning: the first page alone is used of %s%s.", named, more)


def read_image_list(path: Path) -> dict[str, list[str]]:
    """The files below images/ of every label in a list, a CSV file of `filename,label`.

    Raises:
        ValueError: it is no text in UTF-8, has other columns, or a line lacks one; a label is no
            plain name, or a file is not an image or not below the folder images/ beside the list.
    """
    lines = read_text(path).splitlines()
    rows, members = csv.DictReader(lines), dict[str, list[str]]()
    try:
        if not set(LABEL_COLUMNS) <= set(rows.fieldnames or ()):
            wanted = " and ".join(LABEL_COLUMNS)
            raise ValueError(f"{path} must have the columns {wanted}, got {rows.fieldnames}")
        for row in rows:
            if not (row["filename"] and row["label"]):
                raise ValueError(
                    f"{path} must have a filename and a label in every line, got "
                    f"{lines[rows.line_num - 1]!r} in line {rows.line_num}"
                )
            members.setdefault(row["label"], []).append(row["filename"])
    except csv.Error as error:
        raise ValueError(
            f"{path} must be a list of {','.join(LABEL_COLUMNS)}, got {error}"
        ) from error
    _check_listed(path, members)
    return members


def _check_listed(path: Path, members: dict[str, list[str]]) -> None:
    """Check that labels and file names stay inside the folder."""
    for label in members:
        if label[0] == "." or not label.isprintable() or {"/", "\\"} & set(label):
            raise ValueError(f"{path} must have plain names as labels, got {label!r}")
    folder = (path.parent / "images").resolve()
    plain = _plain_files(folder)
    for name in (name for names in members.values() for name in names):
        inside = name in plain or ("\0" not in name and folder in (folder / name).resolve().parents)
        if not inside or not _is_image(name):
            raise ValueError(f"{path} must name images in {folder}, got {name!r}")


def _plain_files(folder: Path) -> set[str]:
    """Files in a folder that are no links; resolving each path would take ten times as long."""
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}


def image_files(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths` and the images below its folders, each once."""
    listed = [
        [path / name for name in _list_folder(path, Counter())] if path.is_dir() else [path]
        for path in paths
    ]
    return list(dict.fromkeys(path for files in listed for path in files))


def warn_of_others(root: Path, used: Collection[Path]) -> None:
    """Name the folders beside the parts that are used: their images would be missed in silence."""
    here = (path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != ".")
    if others := [path for path in here if path not in used]:
        ignored, taken = (", ".join(f"{path.name}/" for path in paths) for paths in (others, used))
        log.warning("Warning: in %s, %s is ignored; used are %s.", root, ignored, taken)


def part_folders(root: Path) -> dict[str, Path]:
    """The folders in `root` that are parts: train (training), val (valid, dev), test (testing).

    Raises:
        ValueError: two of them are the same part.
    """
    folders: dict[str, Path] = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        part = PART_OF.get(folder.name.lower())
        if part and _is_part(folder) and folders.setdefault(part, folder) != folder:
            names = f"{folders[part].name}/ and {folder.name}/"
            raise ValueError(f"{root} must have one folder of the part {part}, got {names}")
    return folders


def _is_part(folder: Path) -> bool:
    """Whether a folder can be a part, one of class folders: it is there and no class itself.

    A class may be called train (CIFAR-100 has one): images lie in it, and no folders.
    """
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        inside = [entry for entry in entries if entry.name[0] != "."]
        return any(map(_is_folder, inside)) or not any(_is_image(entry.name) for entry in inside)


def check_classes(train: Listing, test: Listing) -> None:
    """Raise a `ValueError` naming a class that only one of two parts has."""
    for here, there in ((train, test), (test, train)):
        for name in here.class_names:
            if name not in there.class_names:
                raise ValueError(
                    f"both parts must have the same classes, got {name!r} in {here.folder} and "
                    f"not in {there.folder}{lookalike_text(name, there.class_names)}"
                )


def _list_folder(folder: Path, others: Counter[str]) -> dict[str, int]:
    """Bytes of every image below `folder`, sorted by name; `others` counts those left out."""
    try:
        sizes = dict(_walk_images(folder, others))
    except OSError as error:
        raise ValueError(f"{folder} must hold readable images, got {error}") from error
    if not sizes:
        raise ValueError(f"{folder} must hold images ({' '.join(sorted(SUFFIXES))}), got none")
    # Folder by folder, as file managers show them: of the text alone, "x-1" comes before "x/0".
    return dict(sorted(sizes.items(), key=lambda file: file[0].split("/")))


def _walk_images(folder: Path, others: Counter[str]) -> Iterator[tuple[str, int]]:
    """Names and bytes of images; torchvision's `make_dataset` would follow links without end."""
    seen = set[tuple[int, int]]()
    for place, folders, names in os.walk(folder, onerror=_raise_error, followlinks=True):
        state = Path(place).stat()
        if (state.st_dev, state.st_ino) in seen:
            raise ValueError(f"{place} must not link to a folder that is listed already")
        seen.add((state.st_dev, state.st_ino))
        folders[:] = [name for name in folders if name[0] != "."]
        prefix = "" if Path(place) == folder else f"{Path(place).relative_to(folder).as_posix()}/"
        for name in names:
            suffix = Path(name).suffix.lower()
            if name[0] == "." or suffix not in SUFFIXES:
                others.update({suffix} & UNREAD if name[0] != "." else ())
                continue
            state = Path(place, name).stat()
            if not stat.S_ISREG(state.st_mode):
                raise ValueError(f"{place}/{name} must be an image, but is not a regular file")
            yield prefix + name, state.st_size


def _raise_error(error: OSError) -> None:
    raise error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # a link that leads to itself
        return entry.is_dir()
    return False


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES

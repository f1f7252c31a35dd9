"""Which image files belong to which class and part of a few-shot data set."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.files import read_json
from neural_similarity.lab.data.class_split import PARTS, check_disjoint, random_split
from neural_similarity.lab.data.listing import list_images, listed_images, part_folders

Files = dict[str, tuple[Path, ...]]
"""Image files by the name of their class."""
SPLIT = "split.json"
BACKGROUND, EVALUATION = "images_background", "images_evaluation"


@dataclass(frozen=True)
class ClassFiles:
    """The files of a data set.

    Args:
        folder: where they lie.
        parts: the files of every class of each part.

    Raises:
        ValueError: a part has no classes, or two have one in common, or an image is there twice.
    """

    folder: Path
    parts: dict[str, Files]

    def __post_init__(self) -> None:
        for part in PARTS:
            if not self.parts.get(part):
                raise ValueError(f"{self.folder} must have classes of the part {part}, got none")
        check_disjoint(self.parts, self.folder)
        _check_unique(list(self.paths), f"{self.folder} must have every image once")

    @property
    def paths(self) -> Iterator[Path]:
        """All files: part by part, class by class."""
        return (p for part in PARTS for paths in self.parts[part].values() for p in paths)

    def signature(self) -> str:
        """SHA-256 over parts, classes, and the names, sizes and times of change of all files.

        Raises:
            FileNotFoundError: a file is missing.
        """
        digest = hashlib.sha256()
        for part in PARTS:
            for name, paths in self.parts[part].items():
                files = [(p.relative_to(self.folder).as_posix(), *_state(p, part)) for p in paths]
                digest.update(json.dumps([part, name, files]).encode())
        return digest.hexdigest()


def _state(path: Path, part: str) -> tuple[int, int]:
    """Size in bytes, and time of the last change in nanoseconds."""
    try:
        state = path.stat()
        return state.st_size, state.st_mtime_ns
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {part} names it") from None


def find_class_files(folder: Path) -> ClassFiles:
    """The files of `folder` in the layout that it has.

    Three csv files (columns filename and label) beside images/, as Mini-ImageNet comes; folders
    train, val and test of class folders; or class folders, shared out by a file split.json
    (a list of class names for each part) or, without one, at random, always the same way.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the layout has a fault: a class that is missing, empty or in two parts.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder of images")
    return find_parts(folder) or _shared_out(folder, _class_folders(folder, part=False))


def find_parts(folder: Path) -> ClassFiles | None:
    """The files of `folder` where lists or folders say which class is in which part, else None.

    Raises:
        FileNotFoundError: the list or the folder of a part is missing.
        ValueError: a class is missing, empty or in two parts.
    """
    if (folder / "train.csv").is_file():
        return ClassFiles(folder, {part: _read_csv(folder, part) for part in PARTS})
    found = part_folders(folder)
    if "train" in found:
        places = {part: found.get(part, folder / part) for part in PARTS}
        return ClassFiles(folder, {part: _class_folders(path) for part, path in places.items()})
    return None


def find_omniglot(folder: Path) -> ClassFiles:
    """Omniglot's own layout: alphabets of characters, each character a class of 20 drawings.

    Tests are on images_evaluation; of the alphabets of images_background, the last fifth by name
    validates.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    background, evaluation = (_alphabets(folder / name) for name in (BACKGROUND, EVALUATION))
    kept = len(background) - max(1, len(background) // 5)
    chosen = {"train": background[:kept], "val": background[kept:], "test": evaluation}
    return ClassFiles(folder, {part: _characters(paths) for part, paths in chosen.items()})


def _read_csv(folder: Path, part: str) -> Files:
    path = folder / f"{part}.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the split needs {', '.join(PARTS)}")
    found: dict[str, list[Path]] = {}
    for name, label in listed_images(path):
        found.setdefault(label, []).append(folder / "images" / name)
    return {name: tuple(paths) for name, paths in found.items()}


def _class_folders(folder: Path, *, part: bool = True) -> Files:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: the split needs {', '.join(PARTS)}")
    members = list_images(folder, part=part).members
    return {name: tuple(folder / name / file for file in files) for name, files in members.items()}


def _shared_out(folder: Path, files: Files) -> ClassFiles:
    path = folder / SPLIT
    split = _read_split(path) if path.is_file() else random_split(list(files))
    for part in PARTS:
        for name in split[part]:
            if name not in files:
                raise ValueError(f"{path} names the class {name!r} in {part}, which has no folder")
    return ClassFiles(folder, {part: {name: files[name] for name in split[part]} for part in PARTS})


def _read_split(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        split = read_json(path)
        found = {part: _names(split[part]) for part in PARTS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold a list of class names for each of {', '.join(PARTS)}: {error!r}"
        ) from error
    for part, names in found.items():
        _check_unique(names, f"{path} must name every class of {part} once")
    return found


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"got {value!r}")
    return tuple(map(str, value))


def _check_unique(names: Sequence[object], text: str) -> None:
    """Raise a `ValueError` that names a duplicate; `text` says what is required."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{text}, got {str(name)!r} {count} times")


def _alphabets(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: Omniglot has it beside its other half")
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _characters(alphabets: list[Path]) -> Files:
    found = ((path.name, _class_folders(path)) for path in alphabets)
    return {f"{name}/{one}": paths for name, files in found for one, paths in files.items()}

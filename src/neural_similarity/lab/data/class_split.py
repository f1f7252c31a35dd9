"""Few-shot data sets, whose training, validation and test classes differ: images and files."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from neural_similarity.choices import require_known
from neural_similarity.lab.data.images import Dataset, Images, seeded_generator
from neural_similarity.lab.data.listing import (
    list_images,
    part_folders,
    read_image_list,
    visible_name,
    warn_of_others,
)

CLASS_PARTS = ("train", "val", "test")
SHARES = (64, 16, 20)
"""Classes of the three parts per hundred, as in Mini-ImageNet."""
Files = dict[str, tuple[Path, ...]]
"""Image files by the name of their class."""


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Images of three disjoint sets of classes."""

    name: str
    train: Images
    val: Images
    test: Images
    digest: str

    def __post_init__(self) -> None:
        check_disjoint({part: self.images_of_part(part).classes for part in CLASS_PARTS}, self.name)

    def images_of_part(self, name: str) -> Images:
        """The images of "train", "val", "test", or "train+val"."""
        require_known("name", name, (*CLASS_PARTS, "train+val"))
        return join_classes(self.train, self.val) if name == "train+val" else getattr(self, name)


def join_classes(first: Images, second: Images) -> Images:
    """The images of both, whose classes differ."""
    labels = torch.cat([first.labels, second.labels + len(first.classes)])
    pixels = torch.cat([first.pixels, second.pixels])
    return Images(pixels, labels, first.classes + second.classes)


def all_images(dataset: Dataset) -> Images:
    """The training and test images of a data set that is held in memory."""
    parts = [part for part in (dataset.train, dataset.test) if isinstance(part, Images)]
    pixels, labels = ([getattr(part, field) for part in parts] for field in ("pixels", "labels"))
    return Images(torch.cat(pixels), torch.cat(labels), dataset.train.classes)


def select_classes(images: Images, names: Sequence[str]) -> Images:
    """The images of the classes `names`, in the order of `images`."""
    missing = [name for name in names if name not in images.classes]
    if missing:
        raise ValueError(f"`names` must be classes of the data, got {missing[0]!r}")
    positions = torch.full((len(images.classes),), -1)
    for label, name in enumerate(names):
        positions[images.classes.index(name)] = label
    labels = positions[images.labels]
    chosen = (labels >= 0).nonzero().flatten()
    return Images(images.pixels[chosen], labels[chosen], tuple(names))


def check_disjoint(classes: Mapping[str, Iterable[str]], where: object) -> None:
    """Check that no class is in two parts."""
    seen: dict[str, str] = {}
    for part, names in classes.items():
        for name in names:
            if seen.setdefault(visible_name(name), part) != part:
                raise ValueError(
                    f"{where}: the parts must have no class in common, got {name!r} in "
                    f"{seen[visible_name(name)]} and {part}"
                )


def random_split(names: list[str], seed: int = 0) -> dict[str, tuple[str, ...]]:
    """Distribute classes over the three parts at random, 64, 16 and 20 per hundred.

    Every part gets a class at least.
    """
    if len(names) < len(CLASS_PARTS):
        raise ValueError(f"`names` must hold at least {len(CLASS_PARTS)} classes, got {len(names)}")
    order = torch.randperm(len(names), generator=seeded_generator("class split", seed)).tolist()
    val, test = (max(1, round(len(names) * share / 100)) for share in SHARES[1:])
    cuts = {"train": order[val + test :], "val": order[:val], "test": order[val : val + test]}
    return {part: tuple([names[i] for i in sorted(cuts[part])]) for part in CLASS_PARTS}


@dataclass(frozen=True)
class ClassFiles:
    """The files of a data set."""

    folder: Path
    parts: dict[str, Files]

    def __post_init__(self) -> None:
        for part in CLASS_PARTS:
            if not self.parts.get(part):
                raise ValueError(f"{self.folder} must have classes of the part {part}, got none")
        check_disjoint(self.parts, self.folder)
        _check_unique(list(self.file_paths), f"{self.folder} must have every image once")

    @property
    def file_paths(self) -> Iterator[Path]:
        """All files: part by part, class by class."""
        return (p for part in CLASS_PARTS for paths in self.parts[part].values() for p in paths)

    def file_signature(self) -> str:
        """SHA-256 over parts, classes, and the names, sizes and times of change of all files."""
        digest = hashlib.sha256()
        for part in CLASS_PARTS:
            for name, paths in self.parts[part].items():
                files = [
                    (p.relative_to(self.folder).as_posix(), *_file_state(p, part)) for p in paths
                ]
                digest.update(json.dumps([part, name, files]).encode())
        return digest.hexdigest()


def _file_state(path: Path, part: str) -> tuple[int, int]:
    """Size in bytes, and time of the last change in nanoseconds."""
    try:
        state = path.stat()
        return state.st_size, state.st_mtime_ns
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {part} names it") from None


def find_class_files(folder: Path) -> ClassFiles:
    """The files of `folder` in the layout that it has.

    Three csv files (columns filename and label) beside images/, as Mini-ImageNet comes; folders
    train, val and test of class folders; or class folders, shared out at random, always the same
    way.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the layout has a fault: a class that is missing, empty or in two parts.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder of images")
    return find_parts(folder) or _share_out_classes(folder, _class_folders(folder, part=False))


def find_parts(folder: Path) -> ClassFiles | None:
    """The files of `folder` where lists or folders say which class is in which part, else None."""
    if (folder / "train.csv").is_file():
        return ClassFiles(folder, {part: _read_csv(folder, part) for part in CLASS_PARTS})
    folders = part_folders(folder)
    if "train" in folders:
        places = {part: folders.get(part, folder / part) for part in CLASS_PARTS}
        warn_of_others(folder, list(places.values()))
        return ClassFiles(folder, {part: _class_folders(path) for part, path in places.items()})
    return None


def _read_csv(folder: Path, part: str) -> Files:
    path = folder / f"{part}.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the split needs {', '.join(CLASS_PARTS)}")
    listed = read_image_list(path)
    return {label: tuple(folder / "images" / n for n in names) for label, names in listed.items()}


def _class_folders(folder: Path, *, part: bool = True) -> Files:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: the split needs {', '.join(CLASS_PARTS)}")
    members = list_images(folder, part=part).members
    return {name: tuple(folder / name / file for file in files) for name, files in members.items()}


def _share_out_classes(folder: Path, files: Files) -> ClassFiles:
    split = random_split(list(files))
    parts = {part: {name: files[name] for name in split[part]} for part in CLASS_PARTS}
    return ClassFiles(folder, parts)


def _check_unique(names: Sequence[object], text: str) -> None:
    """Raise a `ValueError` that names a duplicate; `text` says what is required."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{text}, got {str(name)!r} {count} times")

"""Putting images that lists assign to classes into ImageNet's layout."""

import os
import shutil
from pathlib import Path

from neural_similarity.choices import require_count
from neural_similarity.lab.data.imagenet import PARTS
from neural_similarity.lab.data.listing import listed_images

PARTIAL = ".laying-out"
"""What is being made; the parts appear when they are whole."""


def lay_out(source: str | Path, root: str | Path, held_out: int = 100) -> Path:
    """Make `root`/train/CLASS and `root`/val/CLASS of images that are listed by class.

    `source` is Mini-ImageNet as it is passed around (Ravi and Larochelle,
    https://openreview.net/forum?id=rJY0-Kcll): images/ and lists *.csv of `filename,label`, all of
    which are taken, whatever classes they were meant for: 100 classes of 500 + 100 images for
    classification. Files are linked where the disk can, and copied elsewhere. A file that several
    lists name is taken once.

    Args:
        source: folder of images/ and the lists.
        root: folder to make.
        held_out: images of every class, the last ones by name, that go into val.

    Returns:
        `root`.

    Raises:
        FileNotFoundError: there is no list, or an image that a list names is missing.
        FileExistsError: `root` holds one of the parts already.
        ValueError: a class has no more than `held_out` images, which must be one at least, or two
            of one name; or a list has other columns.
    """
    require_count("held_out", held_out)
    source, root = Path(source), Path(root)
    members = _read_lists(source)
    for name, files in members.items():
        if len(files) <= held_out:
            raise ValueError(
                f"`held_out` must be below the images of every class, got {held_out} of "
                f"{len(files)} of the class {name!r}"
            )
        _check_names(name, files)
    for part in PARTS:
        if (root / part).exists():
            raise FileExistsError(f"{root / part} is there already; name another folder")
    partial = root / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    for name, files in members.items():
        for part, chosen in zip(PARTS, (files[:-held_out], files[-held_out:]), strict=True):
            folder = partial / part / name
            folder.mkdir(parents=True)
            for file in chosen:
                _link(source / "images" / file, folder / Path(file).name)
    for part in PARTS:
        (partial / part).rename(root / part)
    partial.rmdir()
    return root


def _check_names(label: str, files: list[str]) -> None:
    """Refuse two files of a class that would get one name."""
    taken: dict[str, str] = {}
    for file in files:
        other = taken.setdefault(Path(file).name, file)
        if other != file:
            raise ValueError(
                f"files of a class must have names of their own, got {other} and {file} in the "
                f"class {label!r}"
            )


def _read_lists(source: Path) -> dict[str, list[str]]:
    """The files of every class by all lists, sorted."""
    lists = sorted(source.glob("*.csv"))
    if not lists:
        raise FileNotFoundError(f"{source} must hold images/ and lists *.csv of filename,label")
    members: dict[str, set[str]] = {}
    for path in lists:
        for name, label in listed_images(path):
            members.setdefault(label, set()).add(name)
    return {label: sorted(files) for label, files in members.items()}


def _link(source: Path, target: Path) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"{source} is missing, which a list names")
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)

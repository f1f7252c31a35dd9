"""Data sets in ImageNet's layout: many images, decoded when a batch needs them.

`train/<class>/*.JPEG` and `val/<class>/*.JPEG`, as of ImageNet-2012 (Russakovsky et al.,
https://arxiv.org/abs/1409.0575), whose classes are folders such as n01440764.
"""

import os
import shutil
from pathlib import Path

from neural_similarity.choices import require_count, require_least
from neural_similarity.files import new_file, open_file
from neural_similarity.lab.data.decoding import read_header
from neural_similarity.lab.data.images import Dataset, ImageFiles
from neural_similarity.lab.data.listing import (
    check_classes,
    list_images,
    part_folders,
    read_image_list,
    warn_of_others,
)
from neural_similarity.lab.folders import new_folder

NAME = "imagenet"
IMAGENET_PARTS = ("train", "val")
IMAGE_SIZE = 224


def load_imagenet(root: Path, image_size: int | None = None, workers: int = 0) -> Dataset:
    """List `root`/train and `root`/val, whose class folders must have the same names.

    The data set's digest covers the names and sizes of the files, not their content: reading
    150 GB would take hours.

    Raises:
        FileNotFoundError: a part is missing.
        ValueError: a class is empty or in one part only, or `image_size` is below 1.
    """
    size = IMAGE_SIZE if image_size is None else image_size
    require_least("image_size", size)
    folders = part_folders(root)
    parts = [folders.get(name, root / name) for name in IMAGENET_PARTS]
    for part in parts:
        if not part.is_dir():
            raise FileNotFoundError(
                f"{part} is missing; ImageNet's layout is train/CLASS/*.JPEG and val/CLASS/*.JPEG"
            )
    warn_of_others(root, parts)
    train, val = map(list_images, parts)
    check_classes(train, val)
    options = {"image_size": size, "workers": workers}
    return Dataset(
        NAME, ImageFiles.from_listing(train, **options), ImageFiles.from_listing(val, **options)
    )


def lay_out(source: str | Path, root: str | Path, held_out: int = 100) -> Path:
    """Make `root`/train/CLASS and `root`/val/CLASS of images that are listed by class.

    `source` is Mini-ImageNet as it is passed around (Ravi and Larochelle,
    https://openreview.net/forum?id=rJY0-Kcll): images/ and lists *.csv of `filename,label`, all of
    which are taken, whatever classes they were meant for: 100 classes of 500 + 100 images for
    classification. Files are linked where the disk can, and copied elsewhere. A file that several
    lists name is taken once. Of every class the last `held_out` images by name go into val.

    Returns:
        `root`.

    Raises:
        FileNotFoundError: there is no list, or an image that a list names is missing.
        FileExistsError: `root` holds anything already.
        ValueError: a class has no more than `held_out` images, which must be one at least, or two
            of one name; or a list has other columns, or names what is not an image below images/.
    """
    require_count("held_out", held_out)
    source, root = Path(source), Path(root)
    if root.is_dir() and any(root.iterdir()):
        raise FileExistsError(f"{root} holds files already; name another folder")
    members = _read_lists(source)
    for name, files in members.items():
        if len(files) <= held_out:
            raise ValueError(
                f"`held_out` must be below the number of images of every class, got {held_out} "
                f"for {len(files)} images of the class {name!r}"
            )
        _check_members(source / "images", name, files)
    with new_folder(root, replace=False) as fresh:
        for name, files in members.items():
            for part, chosen in zip(
                IMAGENET_PARTS, (files[:-held_out], files[-held_out:]), strict=True
            ):
                folder = fresh / part / name
                folder.mkdir(parents=True)
                for file in chosen:
                    _link_file(source / "images" / file, folder / Path(file).name)
    return root


def _check_members(folder: Path, label: str, files: list[str]) -> None:
    """Check that files are images, and that no two files of a class share a name."""
    taken: dict[str, str] = {}
    for file in files:
        other = taken.setdefault(Path(file).name, file)
        if other != file:
            raise ValueError(
                f"files of a class must have distinct names, got {other} and {file} in the "
                f"class {label!r}"
            )
    for path in (folder / file for file in files):
        if not path.is_file():
            raise FileNotFoundError(f"a list names {path}, which is missing")
        read_header(path)


def _read_lists(source: Path) -> dict[str, list[str]]:
    """The files of every class by all lists, sorted."""
    lists = sorted(path for path in source.glob("*.csv") if path.name[0] != ".")
    if not lists:
        raise FileNotFoundError(f"{source} must hold images/ and lists *.csv of filename,label")
    members: dict[str, set[str]] = {}
    for path in lists:
        for label, names in read_image_list(path).items():
            members.setdefault(label, set()).update(names)
    return {label: sorted(files) for label, files in members.items()}


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        with open_file(source) as content, new_file(target) as file:
            shutil.copyfileobj(content, file)

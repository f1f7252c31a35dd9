"""Data sets in ImageNet's layout: many images, decoded when a batch needs them.

`train/<class>/*.JPEG` and `val/<class>/*.JPEG`, as of ImageNet-2012 (Russakovsky et al.,
https://arxiv.org/abs/1409.0575), whose classes are folders such as n01440764.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neural_similarity.choices import require_least
from neural_similarity.lab.data.image_files import ImageFiles
from neural_similarity.lab.data.images import Dataset
from neural_similarity.lab.data.listing import Listing, check_classes, list_images

NAME = "imagenet"
PARTS = ("train", "val")
IMAGE_SIZE = 224
CACHE = ".listing.json"
"""Kept beside the parts: listing 1.3 million files anew takes minutes on a network's disk."""
SETTLED_NS = 2_000_000_000
"""How long ago a folder must have changed for its listing to be kept: disks round times."""


def load_imagenet(root: Path, image_size: int | None = None, workers: int = 0) -> Dataset:
    """List `root`/train and `root`/val, whose class folders must have the same names.

    The data set's digest covers the names and sizes of the files, not their content: reading
    150 GB would take hours. The listing itself is kept in `root`/.listing.json, where that can be
    written, and used again until files are added to a folder, removed from it or renamed.

    Args:
        root: the folder that holds both parts.
        image_size: height and width that images are decoded to; None is 224.
        workers: processes that decode.

    Raises:
        FileNotFoundError: a part is missing.
        ValueError: a class is empty or in one part only, or `image_size` is below 1.
    """
    size = IMAGE_SIZE if image_size is None else image_size
    require_least("image_size", size)
    parts = [root / name for name in PARTS]
    for part in parts:
        if not part.is_dir():
            raise FileNotFoundError(
                f"{part} is missing; ImageNet's layout is train/CLASS/*.JPEG and val/CLASS/*.JPEG"
            )
    train, val = _listed(root, parts)
    check_classes(train, val)
    options = {"image_size": size, "workers": workers}
    return Dataset(NAME, ImageFiles.of(train, **options), ImageFiles.of(val, **options))


def _listed(root: Path, parts: list[Path]) -> list[Listing]:
    """The parts' listings, from the cache where no folder of images has changed since."""
    cached = _read(root / CACHE)
    if cached and cached["stamps"] == _stamps(root, cached["stamps"]):
        return [_listing(part, cached["files"][part.name]) for part in parts]
    began = time.time_ns()
    listings = [list_images(part) for part in parts]
    files = {listing.folder.name: _as_json(listing) for listing in listings}
    folders = [f"{one.folder.name}/{folder}" for one in listings for folder in (".", *one.folders)]
    stamps = _stamps(root, folders)
    quiet = began - SETTLED_NS  # Else files may still arrive, unseen in folders that are listed.
    if all(stamp is not None and stamp < quiet for stamp in stamps.values()):
        with contextlib.suppress(OSError):  # A folder that cannot be written is listed every time.
            _write(root / CACHE, {"stamps": stamps, "files": files})
    return listings


def _stamps(root: Path, folders: Iterable[str]) -> dict[str, int | None]:
    """When each of the folders below `root` last changed; None: it is gone."""
    found = {folder: root / folder for folder in folders}
    return {n: path.stat().st_mtime_ns if path.is_dir() else None for n, path in found.items()}


def _as_json(listing: Listing) -> dict[str, dict[str, int]]:
    """Bytes by file by class."""
    members = zip(listing.classes, listing.names, listing.sizes, strict=True)
    return {name: dict(zip(files, sizes, strict=True)) for name, files, sizes in members}


def _listing(folder: Path, files: dict[str, dict[str, int]]) -> Listing:
    """`_as_json` undone."""
    sizes = tuple(tuple(members.values()) for members in files.values())
    return Listing(folder, tuple(files), tuple(tuple(members) for members in files.values()), sizes)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.keys() >= {"stamps", "files"} else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)

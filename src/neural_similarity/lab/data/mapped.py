"""Images kept in a file that later runs map into memory."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from neural_similarity.lab.data.class_files import ClassFiles
from neural_similarity.lab.data.class_split import PARTS, ClassSplit
from neural_similarity.lab.data.decoding import read_header, read_pixels
from neural_similarity.lab.data.files import Progress, new_file, read_json, sync
from neural_similarity.lab.data.images import Images, digest_of
from neural_similarity.lab.data.unpickling import unpickle

VERSION = 3
PICKLES = ("mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{}.pickle")
"""The names of the public files; of the second kind, "train" is "train_phase_train"."""
CACHE = "cache-pickles.pixels"
CHUNK = 600
"""Images that are written between two reports of progress."""


@dataclass(frozen=True)
class Content:
    """What a cache holds.

    Args:
        shape: of all pixels, (n, c, h, w).
        counts: images of every class of each part, in the order of the pixels.
        digest: SHA-256 of the data set.
    """

    shape: list[int]
    counts: list[dict[str, int]]
    digest: str


def load_mapped(
    name: str, cache: Path, signature: str, write: Callable[[BinaryIO], Content]
) -> ClassSplit:
    """The images of a cache, which is made where it is missing or of other files.

    Beside `cache` lies its description in JSON, which goes before the pixels change and comes when
    they are on the disk: whenever the machine stops, it tells of the pixels that are there. Their
    digest is checked at every start, in about a second per GiB. Of processes that begin at once,
    one makes the cache and the others wait.

    Args:
        name: of the data set.
        cache: file of the pixels; its folder, which is the data set's, must be writable.
        signature: tells the files that the cache is made of from others.
        write: writes all pixels, uint8 (n, c, h, w), and says what they are.

    Raises:
        ValueError: the cache is damaged; the error names it.
    """
    with _locked(cache.parent):
        kept = _read_description(cache, signature) or _make(cache, signature, write)
        return _split(name, cache, *kept)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a cache in `folder`, and let none begin."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_description(cache: Path, signature: str) -> tuple[Content, str] | None:
    """What a cache holds, and the digest of its pixels; None where they have to be made."""
    try:
        found = read_json(_description(cache))
        whole = found.pop("digest") == _digest(found)
        if whole and (found["version"], found["signature"]) == (VERSION, signature):
            return (Content(**found["content"]), found["pixels"]) if cache.is_file() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _make(cache: Path, signature: str, write: Callable[[BinaryIO], Content]) -> tuple[Content, str]:
    """Write all pixels, and then what they are."""
    description = _description(cache)
    with new_file(cache) as fresh:
        with fresh.open("wb") as file:
            content = write(file)
        checksum = _checksum(_map(fresh, content))
        description.unlink(missing_ok=True)
        sync(cache.parent)
    kept = {"version": VERSION, "signature": signature, "content": asdict(content)}
    kept["pixels"] = checksum
    with new_file(description) as fresh:
        fresh.write_text(json.dumps(kept | {"digest": _digest(kept)}, indent=2) + "\n", "utf-8")
    return content, checksum


def _description(cache: Path) -> Path:
    return cache.with_suffix(".json")


def _map(path: Path, content: Content) -> Tensor:
    size = prod(content.shape)
    if path.stat().st_size != size:
        raise ValueError(f"{path} must hold {size:,} bytes, got a damaged file; delete it")
    pixels = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return pixels.view(content.shape)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _checksum(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.numpy().data).hexdigest()


def _split(name: str, cache: Path, content: Content, checksum: str) -> ClassSplit:
    pixels = _map(cache, content)
    if _checksum(pixels) != checksum:
        raise ValueError(f"{cache} must hold the pixels it was made with, got others; delete it")
    parts = pixels.split([sum(sizes.values()) for sizes in content.counts])
    images = [_images(*part) for part in zip(parts, content.counts, strict=True)]
    return ClassSplit(name, *images, digest=content.digest)


def _images(pixels: Tensor, counts: dict[str, int]) -> Images:
    sizes = torch.tensor(list(counts.values()))
    return Images(pixels, torch.arange(len(sizes)).repeat_interleave(sizes), tuple(counts))


def load_class_images(
    name: str, files: ClassFiles, size: int, *, mode: str | None, progress: Progress | None = None
) -> ClassSplit:
    """The images of `files`, resized and cropped to `size` pixels, from a cache beside them.

    The cache, `cache-<size>.pixels`, tells files by their names, sizes and times of change; see
    `load_mapped`.

    Args:
        name: of the data set.
        files: what to read.
        size: height and width.
        mode: "L" (grey), "RGB", or None: grey if all images are.
        progress: told how many images are decoded.

    Raises:
        ValueError: a file is no image or damaged; the error names it.
    """
    cache = files.folder / f"cache-{size}.pixels"
    write = partial(_decode, files, size, mode, progress)
    return load_mapped(name, cache, files.signature(), write)


def _decode(
    files: ClassFiles, size: int, mode: str | None, progress: Progress | None, file: BinaryIO
) -> Content:
    """Write the pixels of all files; the digest is over them and the files of every class."""
    paths = list(files.paths)
    mode = mode or ("L" if all(read_header(p).mode == "L" for p in paths) else "RGB")
    digest = hashlib.sha256()
    for done, source in enumerate(paths, start=1):
        pixels = np.ascontiguousarray(read_pixels(source, mode, (size, size)))
        digest.update(pixels.data)
        file.write(pixels.data)
        if progress:
            progress(done, len(paths))
    shape = [len(paths), 1 if mode == "L" else 3, size, size]
    counts = [{name: len(paths) for name, paths in files.parts[part].items()} for part in PARTS]
    described = [counts, {"shape": shape, "digest": digest.hexdigest()}]
    return Content(shape, counts, _digest(described))


def find_pickles(folder: Path) -> dict[str, Path] | None:
    """The three files in `folder`, or None where one is missing."""
    for pattern in PICKLES:
        names = {part: [pattern.format(part)] for part in PARTS}
        names["train"].append(pattern.format("train_phase_train"))
        found = {
            part: next((folder / n for n in names[part] if (folder / n).is_file()), None)
            for part in PARTS
        }
        if all(found.values()):
            return {part: path for part, path in found.items() if path}
    return None


def load_pickles(name: str, paths: dict[str, Path], progress: Progress | None = None) -> ClassSplit:
    """The images of three pickles, of which nothing but arrays and plain values is accepted.

    They are read once, into a cache beside them, `cache-pickles.pixels`, which tells them by
    names, sizes and times of change; see `load_mapped`.

    Args:
        name: of the data set.
        paths: the file of each part.
        progress: told how many images are in the cache.

    Raises:
        ValueError: a file is damaged, holds something else, or names anything to be run.
    """
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths.values()]
    cache = paths["train"].with_name(CACHE)
    return load_mapped(name, cache, _digest(files), partial(_write, paths, progress))


def _write(paths: dict[str, Path], progress: Progress | None, file: BinaryIO) -> Content:
    """Write the pixels of all three, class by class."""
    parts = [_read(paths[part]) for part in PARTS]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"{paths['train'].parent} must hold images of one shape, got {sorted(shapes)}"
        )
    total, done = sum(map(len, parts)), 0
    for part in parts:
        for chunk in part.chunks(CHUNK):
            file.write(chunk.numpy().data)
            done += len(chunk)
            if progress:
                progress(done, total)
    return Content([total, *parts[0].shape], [_counts(part) for part in parts], digest_of(parts))


def _counts(images: Images) -> dict[str, int]:
    counts = images.labels.bincount(minlength=len(images.classes))
    return dict(zip(images.classes, counts.tolist(), strict=True))


def _read(path: Path) -> Images:
    """A dictionary of `image_data` and `class_dict` (name to positions), or `data`, `labels`."""
    content = unpickle(path)
    pixels = content.get("image_data", content.get("data"))
    if not isinstance(pixels, np.ndarray):
        raise ValueError(f"{path} must hold images, uint8 (n, h, w, c), got {type(pixels)}")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            f"{path} must hold images, uint8 (n, h, w, c), got {pixels.dtype} {pixels.shape}"
        )
    names = _positions(content)
    order = [i for positions in names.values() for i in positions]
    if not order or sorted(order) != [*range(len(pixels))]:
        raise ValueError(f"{path} must tell the class of each of its {len(pixels):,} images")
    counts = torch.tensor([len(positions) for positions in names.values()])
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    chosen = torch.from_numpy(pixels[order]).permute(0, 3, 1, 2).contiguous()
    return Images(chosen, labels, tuple(names))


def _positions(content: dict[str, Any]) -> dict[str, list[int]]:
    """Where the images of each class are, by `class_dict` or by a list of `labels`."""
    named = content.get("class_dict")
    if isinstance(named, dict) and named:
        return {name: _items(positions, int) for name, positions in named.items()}
    found: dict[str, list[int]] = {}
    for i, label in enumerate(_items(content.get("labels"), (int, str))):
        found.setdefault(str(label), []).append(i)
    return found


def _items(value: Any, kind: Any) -> list[Any]:
    """Those of a list or an array; none where one is not of the kind."""
    items = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    known = isinstance(items, list) and all(isinstance(item, kind) for item in items)
    return items if known else []

"""Decoded images, cached in a file that later runs map into memory."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_similarity.files import lock_file, new_file, read_json, sync_path
from neural_similarity.lab.data.class_files import ClassFiles
from neural_similarity.lab.data.class_split import PARTS, ClassSplit
from neural_similarity.lab.data.decoding import read_header, read_pixels
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.data.images import Images, digest_of
from neural_similarity.lab.data.unpickling import unpickle

VERSION = 3
PICKLES = ("mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{}.pickle")
"""The names of the public files; of the second kind, "train" is "train_phase_train"."""
CACHE = "cache-pickles.pixels"
CHUNK = 600
"""Images written between two reports of progress."""


@dataclass(frozen=True)
class Source:
    """The source of a cache.

    Args:
        shape: of all pixels, (n, c, h, w).
        counts: images of every class of each part, in the order of the pixels.
        chunks: the pixels, uint8 (m, c, h, w).
    """

    shape: list[int]
    counts: list[dict[str, int]]
    chunks: Iterable[np.ndarray]


@dataclass(frozen=True)
class Cache:
    """Pixels in a file, and beside it their description in JSON.

    The description goes before the pixels change and comes when they are on the disk: whenever the
    machine stops, it tells of the pixels that are there.

    Args:
        path: file of the pixels; its folder, which is the data set's, must be writable.
        signature: tells the files that the cache is made of from others.
        source: what it is made of.
        identify: the SHA-256 of a data set's parts. It is checked at every start, in about a second
            per GiB.
    """

    path: Path
    signature: str
    source: Callable[[], Source]
    identify: Callable[[list[Images]], str]

    def load(self, name: str, progress: Progress | None) -> ClassSplit:
        """The images; they are read into the cache where it is missing or of other files.

        Of processes that begin at once, one makes the cache and the others wait.

        Raises:
            ValueError: the cache is damaged; the error names it.
        """
        with _locked(self.path.parent):
            found = self._described() or self._make(progress)
            try:
                parts = _map(self.path, found["shape"], found["counts"])
                if self.identify(parts) == found["digest"]:
                    return ClassSplit(name, *parts, digest=found["digest"])
            except (KeyError, TypeError, AttributeError, RuntimeError):
                pass  # the description is damaged
        raise ValueError(f"{self.path} must hold the pixels it was made with; delete it")

    @property
    def _description(self) -> Path:
        return self.path.with_suffix(".json")

    def _described(self) -> dict[str, Any] | None:
        """The description of the cache; None where it has to be made."""
        try:
            found = read_json(self._description)
            known = (found["version"], found["signature"]) == (VERSION, self.signature)
            known = known and len(found["shape"]) == 4 and self.path.is_file()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if known else None

    def _make(self, progress: Progress | None) -> dict[str, Any]:
        """Write all pixels, and then their description."""
        source, done = self.source(), 0
        with new_file(self.path) as fresh:
            with fresh.open("wb") as file:
                for chunk in source.chunks:
                    file.write(np.ascontiguousarray(chunk).data)
                    done += len(chunk)
                    if progress:
                        progress(done, source.shape[0])
            digest = self.identify(_map(fresh, source.shape, source.counts))
            self._description.unlink(missing_ok=True)
            sync_path(self.path.parent)
        found = {"version": VERSION, "signature": self.signature, "digest": digest}
        found |= {"shape": source.shape, "counts": source.counts}
        with new_file(self._description) as fresh:
            fresh.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a cache in `folder`, and keep others out."""
    if sys.platform == "win32":  # It opens no folders.
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock_file(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _map(path: Path, shape: list[int], counts: list[dict[str, int]]) -> list[Images]:
    size = prod(shape)
    if path.stat().st_size != size:
        raise ValueError(f"{path} must hold {size:,} bytes, got a damaged file; delete it")
    pixels = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(shape)
    parts = pixels.split([sum(sizes.values()) for sizes in counts])
    return [_images(*part) for part in zip(parts, counts, strict=True)]


def _images(pixels: Tensor, counts: dict[str, int]) -> Images:
    sizes = torch.tensor(list(counts.values()))
    return Images(pixels, torch.arange(len(sizes)).repeat_interleave(sizes), tuple(counts))


def _counts(images: Images) -> dict[str, int]:
    counts = images.labels.bincount(minlength=len(images.classes))
    return dict(zip(images.classes, counts.tolist(), strict=True))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def load_class_images(
    name: str, files: ClassFiles, size: int, *, mode: str | None, progress: Progress | None = None
) -> ClassSplit:
    """The images of `files`, resized and cropped to `size` pixels, from a cache beside them.

    The cache, `cache-<size>.pixels`, tells files by their names, sizes and times of change.

    Args:
        name: of the data set.
        files: what to read.
        size: height and width.
        mode: "L" (grey), "RGB", or None: grey if all images are.
        progress: told how many images are decoded.

    Raises:
        ValueError: a file is not an image or damaged; the error names it.
    """
    path = files.folder / f"cache-{size}.pixels"
    source = partial(_decoded, files, size, mode)
    return Cache(path, files.signature(), source, _digest_of_files).load(name, progress)


def _decoded(files: ClassFiles, size: int, mode: str | None) -> Source:
    paths = list(files.paths)
    mode = mode or ("L" if all(read_header(path).mode == "L" for path in paths) else "RGB")
    counts = [{name: len(paths) for name, paths in files.parts[part].items()} for part in PARTS]
    chunks = (read_pixels(path, mode, (size, size))[None] for path in paths)
    return Source([len(paths), 1 if mode == "L" else 3, size, size], counts, chunks)


def _digest_of_files(parts: list[Images]) -> str:
    """SHA-256 over the pixels and the number of files of every class."""
    pixels = hashlib.sha256()
    for part in parts:
        pixels.update(part.pixels.numpy().data)
    shape = [sum(map(len, parts)), *parts[0].shape]
    counts = [_counts(part) for part in parts]
    return _digest([counts, {"shape": shape, "digest": pixels.hexdigest()}])


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
    names, sizes and times of change.

    Args:
        name: of the data set.
        paths: the file of each part.
        progress: told how many images are in the cache.

    Raises:
        ValueError: a file is damaged, holds something else, or names anything to be run.
    """
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths.values()]
    path = paths["train"].with_name(CACHE)
    return Cache(path, _digest(files), partial(_unpickled, paths), digest_of).load(name, progress)


def _unpickled(paths: dict[str, Path]) -> Source:
    parts = [_read(paths[part]) for part in PARTS]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"{paths['train'].parent} must hold images of one shape, got {sorted(shapes)}"
        )
    chunks = (chunk.numpy() for part in parts for chunk in part.chunks(CHUNK))
    counts = [_counts(part) for part in parts]
    return Source([sum(map(len, parts)), *parts[0].shape], counts, chunks)


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
    names = _positions(content, len(pixels))
    order = [i for positions in names.values() for i in positions]
    if not order or sorted(order) != [*range(len(pixels))]:
        raise ValueError(f"{path} must give the class of each of its {len(pixels):,} images")
    counts = torch.tensor([len(positions) for positions in names.values()])
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    chosen = torch.from_numpy(pixels[order]).permute(0, 3, 1, 2).contiguous()
    return Images(chosen, labels, tuple(names))


def _positions(content: dict[str, Any], count: int) -> dict[str, list[int]]:
    """Where the images of each class are, by `class_dict` or by a list of `labels`."""
    named = content.get("class_dict")
    if isinstance(named, dict) and named:
        sizes = (p.size if isinstance(p, np.ndarray) else len(p) for p in named.values())
        if any(not isinstance(p, list | np.ndarray) for p in named.values()) or sum(sizes) != count:
            return {}
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

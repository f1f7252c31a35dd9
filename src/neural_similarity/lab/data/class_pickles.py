"""Mini-ImageNet as three pickles of arrays, the form in which it is passed around."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from neural_similarity.lab.data.class_split import PARTS, ClassSplit
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.data.images import Images, digest_of
from neural_similarity.lab.data.mapped import Content, load_mapped
from neural_similarity.lab.data.unpickling import unpickle

PICKLES = ("mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{}.pickle")
"""The names of the public files; of the second kind, "train" is "train_phase_train"."""
CACHE = "cache-pickles.pixels"
CHUNK = 600
"""Images that are written between two reports of progress."""


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
    signature = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    cache = paths["train"].with_name(CACHE)
    return load_mapped(name, cache, signature, partial(_write, paths, progress))


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
    pixels = np.asarray(content.get("image_data", content.get("data")))
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            f"{path} must hold images, uint8 (n, h, w, c), got {pixels.dtype} {pixels.shape}"
        )
    names = content.get("class_dict") or _positions(content.get("labels"))
    if not isinstance(names, dict) or sorted(i for p in names.values() for i in p) != [
        *range(len(pixels))
    ]:
        raise ValueError(f"{path} must tell the class of each of its {len(pixels):,} images")
    order = torch.tensor([i for positions in names.values() for i in positions])
    counts = torch.tensor([len(positions) for positions in names.values()])
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    chosen = torch.from_numpy(pixels)[order].permute(0, 3, 1, 2).contiguous()
    return Images(chosen, labels, tuple(map(str, names)))


def _positions(labels: object) -> dict[str, list[int]]:
    """The positions of each class in a list of labels."""
    found: dict[str, list[int]] = {}
    for i, label in enumerate(np.asarray(labels).ravel().tolist()):
        found.setdefault(str(label), []).append(i)
    return found

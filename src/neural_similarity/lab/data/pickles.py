"""Mini-ImageNet as three public pickles, of which nothing but arrays and plain values is read."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neural_similarity.lab.data.cache import PixelCache
from neural_similarity.lab.data.class_split import CLASS_PARTS, ClassSplit
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.images import Images, class_labels, digest_of
from neural_similarity.lab.data.unpickling import unpickle_arrays

OLD = "miniImageNet_category_split_{}.pickle"
ARCHIVES = (
    ("mini-imagenet-cache-{}.pkl", CLASS_PARTS),
    (OLD, CLASS_PARTS),
    (OLD, ("train_phase_train", *CLASS_PARTS[1:])),
)
"""The names of the public files: pattern and parts."""
CACHE = "cache-pickles.pt"


def find_pickles(folder: Path) -> list[Path] | None:
    """The files of the three parts in `folder`, or None where one is missing."""
    for pattern, names in ARCHIVES:
        paths = [folder / pattern.format(name) for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return None


def load_pickles(
    name: str, paths: list[Path], progress: ProgressCallback | None = None
) -> ClassSplit:
    """The images of three pickles, of which nothing but arrays and plain values is accepted.

    They are read once, into a cache beside them, `cache-pickles.pt`, which recognises them by their
    names, sizes and times of change.

    Raises:
        ValueError: a file is damaged, holds something else, or names anything to be run.
    """

    def read_parts() -> list[Images]:
        parts: list[Images] = []
        for path in paths:
            parts.append(_read_part(path))
            if progress:
                progress(sum(map(len, parts)), None)
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            folder = paths[0].parent
            raise ValueError(f"{folder} must hold images of one shape, got {sorted(shapes)}")
        return parts

    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    signature = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return PixelCache(paths[0].with_name(CACHE), signature, read_parts, digest_of).load_images(name)


def _read_part(path: Path) -> Images:
    """A dictionary of `image_data` and `class_dict` (name to positions), or `data`, `labels`."""
    content = unpickle_arrays(path)
    pixels = content.get("image_data", content.get("data"))
    if not isinstance(pixels, np.ndarray):
        raise ValueError(f"{path} must hold images, uint8 (n, h, w, c), got {type(pixels)}")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            f"{path} must hold images, uint8 (n, h, w, c), got {pixels.dtype} {pixels.shape}"
        )
    names = _class_positions(content, len(pixels))
    order = [i for positions in names.values() for i in positions]
    if not order or sorted(order) != [*range(len(pixels))]:
        raise ValueError(f"{path} must give the class of each of its {len(pixels):,} images")
    chosen = torch.from_numpy(pixels[order]).permute(0, 3, 1, 2).contiguous()
    return Images(
        chosen, class_labels([len(positions) for positions in names.values()]), tuple(names)
    )


def _class_positions(content: dict[str, Any], count: int) -> dict[str, list[int]]:
    """Where the images of each class are, by `class_dict` or by a list of `labels`."""
    named = content.get("class_dict")
    if isinstance(named, dict) and named:
        sizes = (p.size if isinstance(p, np.ndarray) else len(p) for p in named.values())
        if any(not isinstance(p, list | np.ndarray) for p in named.values()) or sum(sizes) != count:
            return {}
        return {name: _list_items(positions, int) for name, positions in named.items()}
    members: dict[str, list[int]] = {}
    for i, label in enumerate(_list_items(content.get("labels"), (int, str))):
        members.setdefault(str(label), []).append(i)
    return members


def _list_items(value: Any, dtype: Any) -> list[Any]:
    """The items of a list or an array; [] unless all are of the type."""
    items = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    known = isinstance(items, list) and all(isinstance(item, dtype) for item in items)
    return items if known else []

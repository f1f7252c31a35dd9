"""Image files decoded once into a file that later runs map into memory."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_similarity.data.class_files import ClassFiles
from neural_similarity.data.class_split import PARTS, ClassSplit
from neural_similarity.data.decoding import read_header, read_pixels
from neural_similarity.data.files import Progress
from neural_similarity.data.images import Images

VERSION = 1


def load_mapped(
    name: str, files: ClassFiles, size: int, *, mode: str | None, progress: Progress | None = None
) -> ClassSplit:
    """The images of `files`, resized and cropped to `size` pixels, from a cache beside them.

    The cache, `cache-<size>.pixels` and its description in JSON, is made where it is missing or
    of other files; it tells files by their names and sizes. Of processes that begin at once, one
    makes it and the others wait.

    Args:
        name: of the data set.
        files: what to read.
        size: height and width.
        mode: "L" (grey), "RGB", or None: grey if all images are.
        progress: told how many images are decoded.

    Raises:
        ValueError: a file is no image or damaged; the error names it.
    """
    signature = files.signature()
    pixels = files.folder / f"cache-{size}.pixels"
    with _locked(files.folder):
        description = _read_description(pixels.with_suffix(".json"))
        if description.get("signature") != signature or not pixels.is_file():
            description = _decode(files, signature, pixels, size, mode, progress)
        return _split(name, files, pixels, description["content"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process decodes the images of `folder`, and let none begin."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_description(path: Path) -> dict[str, Any]:
    """What a cache holds; nothing if it is missing, damaged or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = isinstance(content, dict) and content.get("version") == VERSION
    return content if known and isinstance(content.get("content"), dict) else {}


def _decode(
    files: ClassFiles,
    signature: str,
    path: Path,
    size: int,
    mode: str | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the pixels of all files to `path`, and then what they are."""
    paths = list(files.paths)
    mode = mode or ("L" if all(read_header(p).mode in ("1", "L") for p in paths) else "RGB")
    digest = hashlib.sha256()
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        for done, source in enumerate(paths, start=1):
            pixels = np.ascontiguousarray(read_pixels(source, mode, (size, size)))
            digest.update(pixels.data)
            file.write(pixels.data)
            if progress:
                progress(done, len(paths))
    partial.replace(path)
    content = {
        "shape": [len(paths), 1 if mode == "L" else 3, size, size],
        "digest": digest.hexdigest(),
    }
    description = {"version": VERSION, "signature": signature, "content": content}
    path.with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n", "utf-8")
    return description


def _split(name: str, files: ClassFiles, path: Path, content: dict[str, Any]) -> ClassSplit:
    shape = content["shape"]
    size = int(np.prod(shape))
    if path.stat().st_size != size:
        raise ValueError(f"{path} must hold {size:,} bytes, got a damaged file; delete it")
    pixels = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(shape)
    counts = [{n: len(paths) for n, paths in files.parts[part].items()} for part in PARTS]
    parts = pixels.split([sum(sizes.values()) for sizes in counts])
    images = [_images(*part) for part in zip(parts, counts, strict=True)]
    digest = hashlib.sha256(json.dumps([counts, content]).encode())
    return ClassSplit(name, *images, digest=digest.hexdigest())


def _images(pixels: Tensor, counts: dict[str, int]) -> Images:
    sizes = torch.tensor(list(counts.values()))
    return Images(pixels, torch.arange(len(sizes)).repeat_interleave(sizes), tuple(counts))

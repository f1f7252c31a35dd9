"""Images kept in a file that later runs map into memory."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from neural_similarity.lab.data.class_split import ClassSplit
from neural_similarity.lab.data.images import Images

VERSION = 2


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

    Beside `cache` lies its description in JSON. Of processes that begin at once, one makes the
    cache and the others wait.

    Args:
        name: of the data set.
        cache: file of the pixels; its folder, which is the data set's, must be writable.
        signature: tells the files that the cache is made of from others.
        write: writes all pixels, uint8 (n, c, h, w), and says what they are.

    Raises:
        ValueError: the cache is damaged; the error names it.
    """
    with _locked(cache.parent):
        content = _read_description(cache, signature)
        if content is None:
            content = _make(cache, signature, write)
        return _split(name, cache, content)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a cache in `folder`, and let none begin."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_description(cache: Path, signature: str) -> Content | None:
    """What a cache holds; None if it is missing, or damaged, of other files or another version."""
    try:
        found = json.loads(_description(cache).read_text(encoding="utf-8"))
        if found["version"] == VERSION and found["signature"] == signature and cache.is_file():
            return Content(**found["content"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _make(cache: Path, signature: str, write: Callable[[BinaryIO], Content]) -> Content:
    """Write all pixels, and then what they are."""
    partial = cache.with_name(f".{cache.name}.partial")
    with partial.open("wb") as file:
        content = write(file)
    partial.replace(cache)
    description = {"version": VERSION, "signature": signature, "content": asdict(content)}
    _description(cache).write_text(json.dumps(description, indent=2) + "\n", "utf-8")
    return content


def _description(cache: Path) -> Path:
    return cache.with_suffix(".json")


def _split(name: str, cache: Path, content: Content) -> ClassSplit:
    size = int(np.prod(content.shape))
    if cache.stat().st_size != size:
        raise ValueError(f"{cache} must hold {size:,} bytes, got a damaged file; delete it")
    pixels = torch.from_file(str(cache), shared=False, size=size, dtype=torch.uint8)
    parts = pixels.view(content.shape).split([sum(sizes.values()) for sizes in content.counts])
    images = [_images(*part) for part in zip(parts, content.counts, strict=True)]
    return ClassSplit(name, *images, digest=content.digest)


def _images(pixels: Tensor, counts: dict[str, int]) -> Images:
    sizes = torch.tensor(list(counts.values()))
    return Images(pixels, torch.arange(len(sizes)).repeat_interleave(sizes), tuple(counts))

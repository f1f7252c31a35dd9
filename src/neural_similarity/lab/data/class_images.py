"""Image files of classes, decoded once."""

import hashlib
import json
from functools import partial
from typing import BinaryIO

import numpy as np

from neural_similarity.lab.data.class_files import ClassFiles
from neural_similarity.lab.data.class_split import PARTS, ClassSplit
from neural_similarity.lab.data.decoding import read_header, read_pixels
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.data.mapped import Content, load_mapped


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
    mode = mode or ("L" if all(read_header(p).mode in ("1", "L") for p in paths) else "RGB")
    digest = hashlib.sha256()
    for done, source in enumerate(paths, start=1):
        pixels = np.ascontiguousarray(read_pixels(source, mode, (size, size)))
        digest.update(pixels.data)
        file.write(pixels.data)
        if progress:
            progress(done, len(paths))
    shape = [len(paths), 1 if mode == "L" else 3, size, size]
    counts = [{name: len(paths) for name, paths in files.parts[part].items()} for part in PARTS]
    described = json.dumps([counts, {"shape": shape, "digest": digest.hexdigest()}])
    return Content(shape, counts, hashlib.sha256(described.encode()).hexdigest())

"""Decoded images of few-shot data sets, in a file that later runs map into memory."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from neural_similarity.files import new_file, regular_file
from neural_similarity.lab.data.class_split import CLASS_PARTS, ClassFiles, ClassSplit
from neural_similarity.lab.data.decoding import read_all_pixels, read_header
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.images import Images, class_labels
from neural_similarity.lab.data.listing import warn_of_pages
from neural_similarity.lab.folders import locked_folder

CACHE_VERSION = 4


@dataclass(frozen=True)
class PixelCache:
    """A few-shot data set in one file of `torch.save`, beside the files that it was read from.

    Args:
        path: of the cache; its folder, which is the data set's, must be writable.
        signature: identifies the files that the cache is made from.
        read_parts: decodes the images of the three parts.
        digest_parts: the SHA-256 of the parts. It is checked at every start, in about a second per
            GiB.
    """

    path: Path
    signature: str
    read_parts: Callable[[], Sequence[Images]]
    digest_parts: Callable[[Sequence[Images]], str]

    def load_images(self, name: str) -> ClassSplit:
        """The images; they are read into the cache where it is missing or of other files.

        Of processes that begin at once, one makes the cache and the others wait.
        """
        with locked_folder(self.path.parent):
            return self._load_cached(name) or self._fill_cache(name)

    def _load_cached(self, name: str) -> ClassSplit | None:
        """The images in the cache; None where it is missing or of other files."""
        if not self.path.is_file():
            return None
        try:
            content = torch.load(regular_file(self.path), mmap=True, weights_only=True)
            if (content["version"], content["signature"]) != (CACHE_VERSION, self.signature):
                return None
            parts = [Images(**part) for part in content["parts"]]
            if self.digest_parts(parts) != content["digest"]:
                raise ValueError("their digest is another one")
            return ClassSplit(name, *parts, digest=content["digest"])
        except Exception as error:  # a damaged file raises whatever its bytes happen to ask for
            raise ValueError(
                f"{self.path} must hold the pixels it was made with; delete it: {error}"
            ) from error

    def _fill_cache(self, name: str) -> ClassSplit:
        parts = self.read_parts()
        digest = self.digest_parts(parts)
        content = {"version": CACHE_VERSION, "signature": self.signature, "digest": digest}
        content["parts"] = [vars(part) for part in parts]
        # To an open file: torch hides the reason where it cannot write to a path.
        with new_file(self.path) as file:
            torch.save(content, file)
        return ClassSplit(name, *parts, digest=digest)


def load_class_images(
    name: str,
    files: ClassFiles,
    size: int,
    *,
    mode: str | None,
    progress: ProgressCallback | None = None,
) -> ClassSplit:
    """The images of `files`, resized and cropped to `size` pixels, from a cache beside them.

    The cache, `cache-<size>.pt`, recognises files by their names, sizes and times of change. Mode
    None is grey, "L", if all images are, else "RGB".
    """

    def read_parts() -> list[Images]:
        paths = list(files.file_paths)
        headers = [] if mode else [read_header(path) for path in paths]
        warn_of_pages(headers)
        grey = mode == "L" or (not mode and all(header.mode == "L" for header in headers))
        pixels = read_all_pixels(paths, "L" if grey else "RGB", (size, size), progress)
        classes = [files.parts[part] for part in CLASS_PARTS]
        sizes = [[len(paths) for paths in part.values()] for part in classes]
        parts = zip(pixels.split([sum(part) for part in sizes]), sizes, classes, strict=True)
        return [Images(images, class_labels(part), tuple(names)) for images, part, names in parts]

    path = files.folder / f"cache-{size}.pt"
    return PixelCache(path, files.file_signature(), read_parts, _digest_of_files).load_images(name)


def _digest_of_files(parts: Sequence[Images]) -> str:
    """SHA-256 over the pixels and the number of files of every class."""
    pixels = hashlib.sha256()
    for part in parts:
        pixels.update(part.pixels.numpy().data)
    shape = [sum(map(len, parts)), *parts[0].shape]
    value = [[part.class_sizes for part in parts], {"shape": shape, "digest": pixels.hexdigest()}]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()

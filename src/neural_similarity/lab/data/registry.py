"""Loading data sets by name."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from neural_similarity.choices import require_known
from neural_similarity.lab.data import cifar, fashion_mnist, imagenet
from neural_similarity.lab.data.decoding import Header, read_all_pixels, read_header
from neural_similarity.lab.data.deep import Depth
from neural_similarity.lab.data.images import Dataset, Images, ImageSet, class_labels, split_off
from neural_similarity.lab.data.listing import (
    Listing,
    check_classes,
    list_images,
    part_folders,
    warn_of_others,
    warn_of_pages,
)

FOLDER = "folder"


IN_PLACE = (FOLDER, imagenet.NAME)
"""The data sets whose `root` is the user's own folder of images."""
log = logging.getLogger(__name__)
SHARE = 5
"""One image in this many becomes a test image where there is no folder of test images."""


def load_dataset(
    name: str,
    root: str | Path = "data",
    *,
    image_size: int | None = None,
    workers: int = 0,
    fallback_size: int | None = None,
    draft: bool = False,
) -> Dataset:
    """Load a data set into memory as a whole; "imagenet" stays in its files.

    Args:
        name: "embedded" (comes with the package), "cifar10", "cifar100", "folder" (`root` itself, a
            folder of class folders), "imagenet" (`root` itself, a folder of train/CLASS and
            val/CLASS), or one that another package adds to `LOADERS`.
        root: folder of the data sets.
        image_size: height and width that the images of a folder are resized to.
        workers: processes that decode "imagenet".
        fallback_size: `image_size` of a folder whose images have several sizes, or are not square.
        draft: decode JPEG photographs of a folder that shrink at a fraction, see `read_pixels`.

    Raises:
        FileNotFoundError: a file is missing; the error says how to get it.
        ValueError: there is no such data set, a file is damaged, or `image_size` is given for
            another data set than "folder" and "imagenet".
    """
    require_known("name", name, NAMES)
    options: dict[str, Any] = {}
    if name == FOLDER:
        options = {"image_size": image_size, "fallback_size": fallback_size, "draft": draft}
    elif name == imagenet.NAME:
        options = {"image_size": image_size, "workers": workers}
    elif image_size is not None:
        raise ValueError(
            f"`image_size` is for the data sets {' and '.join(IN_PLACE)}, got {image_size} "
            f"for {name}"
        )
    return LOADERS[name](Path(root), **options)


def require_folder(name: str, root: Path) -> None:
    """Check that the user's own folder is there, where that is the data set.

    Raises:
        FileNotFoundError: it is not.
    """
    if name in IN_PLACE and not root.is_dir():
        kind = "a file" if root.exists() else "none"
        raise FileNotFoundError(f"{root} must be a folder of class folders, got {kind}")


def load_folder(
    root: Path,
    image_size: int | None = None,
    fallback_size: int | None = None,
    *,
    draft: bool = False,
) -> Dataset:
    """Read the parts `root`/train and `root`/test, or class folders in `root`.

    Parts may have other names, see `part_folders`; where test is missing, val stands for it, and
    without either, a fifth of every class, always the same, becomes the test part. Images are
    grey, one channel, if all of them are, and RGB otherwise. Those of 16 bits or of more channels
    than RGB must all be alike; they keep both.

    Args:
        root: the folder; it holds one folder for every class, or the parts that do.
        image_size: resize the shorter side to this and crop the centre; None takes the images as
            they are.
        fallback_size: the same where they are not square and of one size, with a notice.
        draft: decode JPEG photographs that shrink at a fraction, see `read_pixels`.

    Raises:
        FileNotFoundError: `root` is not a folder.
        ValueError: there are no classes, a class is empty or in one part only, a file is not an
            image, or the sizes differ and neither of the two is given.
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"`image_size` must be at least 1, got {image_size}")
    require_folder(FOLDER, root)
    parts = _list_parts(root)
    if len(parts) == 2:
        check_classes(*parts)
    headers = [read_header(path) for part in parts for path in part.file_paths]
    warn_of_pages(headers)
    mode = _common_mode(headers)
    resized = not image_size and fallback_size is not None and not _square_and_alike(headers)
    if resized:
        log.warning(
            "images of several sizes, or not square, are resized to %sx%s (--image-size)",
            fallback_size,
            fallback_size,
        )
        image_size = fallback_size
    size = (image_size, image_size) if image_size else _common_size(headers)
    images = [_read_part(part, mode, size, draft) for part in parts]
    halves = images if len(images) == 2 else _split_fifth(images[0])
    return Dataset(FOLDER, *halves, resized=resized)


def _read_part(part: Listing, mode: str | Depth, size: tuple[int, int], draft: bool) -> Images:
    pixels = read_all_pixels(part.file_paths, mode, size, draft=draft)
    return Images(pixels, class_labels(part.class_sizes), part.class_names)


def _list_parts(root: Path) -> list[Listing]:
    """The training and test parts, or the whole that is to be split."""
    folders = part_folders(root)
    train, test = folders.get("train"), folders.get("test", folders.get("val"))
    if test and not train:
        raise ValueError(f"{root} must hold train/ beside {test.name}/, got none")
    if not train:
        return [list_images(root, part=False)]
    used = [folder for folder in (train, test) if folder]
    warn_of_others(root, used)
    return [list_images(folder) for folder in used]


def _common_mode(headers: list[Header]) -> str | Depth:
    modes = Counter(header.mode for header in headers)
    deep = [mode for mode in modes if isinstance(mode, Depth)]
    if not deep:
        return "L" if set(modes) == {"L"} else "RGB"
    for header in headers:
        if header.mode != deep[0]:
            raise ValueError(
                f"all images must have {deep[0]}, as {modes[deep[0]]:,} of {len(headers):,} do, "
                f"got {header.path} of {_describe_mode(header.mode)}"
            )
    return deep[0]


def _describe_mode(mode: str | Depth) -> str:
    return str(mode) if isinstance(mode, Depth) else f"8 bits, {mode}"


def _square_and_alike(headers: list[Header]) -> bool:
    """Whether images are square and of one size."""
    sizes = {header.size for header in headers}
    return len(sizes) == 1 and all(width == height for width, height in sizes)


def _common_size(headers: list[Header]) -> tuple[int, int]:
    size, count = Counter(header.size for header in headers).most_common(1)[0]
    for header in headers:
        if header.size != size:
            raise ValueError(
                f"all images must have one size unless `image_size` is given: {count:,} of "
                f"{len(headers):,} are {size[0]}x{size[1]}, got {header.path} of "
                f"{header.size[0]}x{header.size[1]}"
            )
    return size


def _split_fifth(images: Images) -> tuple[ImageSet, ImageSet]:
    shares = [max(1, size // SHARE) for size in images.class_sizes.values()]
    return split_off(images, shares, seed=0)


LOADERS: dict[str, Callable[..., Dataset]] = {
    "embedded": lambda _: fashion_mnist.load_embedded(),
    **{name: partial(cifar.load_cifar, each) for name, each in cifar.CIFARS.items()},
    FOLDER: load_folder,
    imagenet.NAME: imagenet.load_imagenet,
}
"""How to load each data set; other packages add theirs by the entry point
`neural_similarity.datasets`, a module."""
NAMES = LOADERS.keys()

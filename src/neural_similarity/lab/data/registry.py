"""Data sets by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from neural_similarity.choices import require_known
from neural_similarity.lab.data import cifar, embedded, fashion_mnist, folder, imagenet
from neural_similarity.lab.data.images import Dataset

_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "embedded": lambda _: embedded.load_embedded(),
    "fashion-mnist": fashion_mnist.load_fashion_mnist,
    "cifar10": partial(cifar.load_cifar, cifar.CIFAR10),
    "cifar100": partial(cifar.load_cifar, cifar.CIFAR100),
}
_FINDERS: dict[str, Callable[[Path], Path]] = {
    "embedded": lambda _: Path(embedded.__file__).with_name("embedded"),
    "fashion-mnist": fashion_mnist.find_fashion_mnist,
    "cifar10": partial(cifar.find_cifar, cifar.CIFAR10),
    "cifar100": partial(cifar.find_cifar, cifar.CIFAR100),
}
IN_PLACE = (folder.NAME, imagenet.NAME)
"""Those whose `root` is the data set itself, a folder of the user's."""
NAMES = (*_LOADERS, *IN_PLACE)


def load(
    name: str, root: str | Path = "data", *, image_size: int | None = None, workers: int = 0
) -> Dataset:
    """Load a data set into memory as a whole; "imagenet" stays in its files.

    Args:
        name: "embedded" (comes with the package), "fashion-mnist", "cifar10", "cifar100", "folder"
            (`root` itself, a folder of class folders), or "imagenet" (`root` itself, a folder of
            train/CLASS and val/CLASS).
        root: folder of the data sets.
        image_size: height and width that the images of a folder are resized to.
        workers: processes that decode "imagenet".

    Raises:
        FileNotFoundError: a file is missing; the error says how to get it.
        ValueError: there is no such data set, a file is damaged, or `image_size` is given for
            another data set than "folder" and "imagenet".
    """
    require_known("name", name, NAMES)
    if name == folder.NAME:
        return folder.load_folder(Path(root), image_size)
    if name == imagenet.NAME:
        return imagenet.load_imagenet(Path(root), image_size, workers)
    if image_size is not None:
        raise ValueError(
            f"`image_size` is for the data sets {' and '.join(IN_PLACE)}, got {image_size} "
            f"for {name}"
        )
    return _LOADERS[name](Path(root))


def find(name: str, root: Path) -> Path:
    """The folder that holds the files of a data set that is not the user's."""
    return _FINDERS[name](root)

"""Few-shot data sets by name.

CIFAR-FS (Bertinetto et al., 2019, https://arxiv.org/abs/1805.08136) shares out the 100 classes of
CIFAR-100 by class, FC100 (Oreshkin et al., 2018, https://arxiv.org/abs/1805.10123) by superclass,
so that test classes are farther away.
"""

from collections.abc import Callable
from pathlib import Path

from neural_similarity.choices import require_known, require_least
from neural_similarity.lab.data.cache import load_class_images
from neural_similarity.lab.data.cifar import CIFAR100, load_cifar
from neural_similarity.lab.data.class_split import (
    ClassFiles,
    ClassSplit,
    all_images,
    find_class_files,
    find_parts,
    select_classes,
)
from neural_similarity.lab.data.fashion_mnist import load_embedded
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.images import digest_of
from neural_similarity.lab.data.pickles import find_pickles, load_pickles

MINI, FOLDER, EMBEDDED = "mini-imagenet", "folder", "embedded"
OLDER_NAMES = {"classes": FOLDER}
"""Former names of data sets."""
CIFAR_FS = {
    "val": (
        "beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab "
        "crocodile maple_tree motorcycle tractor"
    ).split(),
    "test": (
        "whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox "
        "snail worm baby man woman bicycle pickup_truck rocket"
    ).split(),
}
"""The other 64 train."""
FC100 = {
    "val": (
        "bear leopard lion tiger wolf camel cattle chimpanzee elephant kangaroo crab lobster "
        "snail spider worm hamster mouse rabbit shrew squirrel"
    ).split(),
    "test": (
        "beaver dolphin otter seal whale bee beetle butterfly caterpillar cockroach fox porcupine "
        "possum raccoon skunk baby boy girl man woman"
    ).split(),
}
"""Large carnivores, large omnivores and herbivores, other invertebrates, small mammals; aquatic
mammals, insects, medium mammals, people. The other 60 train."""
SPLITS = {"cifar-fs": CIFAR_FS, "fc100": FC100}


def _find_mini_imagenet(folder: Path) -> ClassFiles:
    """The files of Mini-ImageNet, in parts; with a split of our own it would be other data."""
    files = find_parts(folder)
    if files is None:
        place = folder if folder.name == MINI else folder / MINI
        raise FileNotFoundError(
            f"{place} {'lacks its parts' if place.is_dir() else 'is missing'}; it must hold "
            "images/ with train.csv, val.csv and test.csv, or one of the public sets of pickles, "
            "or folders train, val and test of class folders (docs/evidence/few-shot.md)"
        )
    return files


FILES: dict[str, tuple[Callable[[Path], ClassFiles], str | None]] = {
    MINI: (_find_mini_imagenet, "RGB"),
    FOLDER: (find_class_files, None),
}
"""Sets of image files: how to list them, and their mode."""
USUAL_SIZE = 84
SPLIT_NAMES = (EMBEDDED, MINI, *SPLITS, FOLDER)
EMBEDDED_PARTS = (
    ("T-shirt/top", "Trouser", "Pullover", "Sneaker", "Bag"),
    ("Coat", "Sandal"),
    ("Dress", "Shirt", "Ankle boot"),
)


def load_split(
    name: str,
    root: str | Path = "data",
    *,
    image_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> ClassSplit:
    """A few-shot data set, its three parts of different classes.

    Args:
        name: "embedded" (5, 2 and 3 classes of Fashion-MNIST, comes with the package),
            "mini-imagenet", "cifar-fs" and "fc100" (from CIFAR-100), or "folder":
            `root` itself, any folder of class folders, see `find_class_files`.
        root: folder of the data sets.
        image_size: height and width of images that are files; None is 84.
        progress: gets how many images are read, where that has to be done.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: there is no such data set, a class is in two parts or missing, an image cannot
            be read, or the images of `name` have a size of their own.
    """
    name = OLDER_NAMES.get(name, name)
    require_known("name", name, SPLIT_NAMES)
    root = Path(root)
    if name in FILES:
        return _load_files(name, root, image_size, progress)
    if image_size is not None:
        raise ValueError(f"`image_size` is for {', '.join(FILES)}, got {image_size} for {name}")
    return _load_embedded() if name == EMBEDDED else load_cifar_split(name, root)


def _load_files(
    name: str, root: Path, image_size: int | None, progress: ProgressCallback | None
) -> ClassSplit:
    find, mode = FILES[name]
    size = USUAL_SIZE if image_size is None else image_size
    require_least("image_size", size)
    folder = root / name if (root / name).is_dir() and name != FOLDER else root
    if name == MINI and (pickles := find_pickles(folder)):
        split = load_pickles(name, pickles, progress)
        if (height := split.train.shape[1]) != size:
            raise ValueError(f"`image_size` must be {height} for these pickles, got {size}")
        return split
    return load_class_images(name, find(folder), size, mode=mode, progress=progress)


def _load_embedded() -> ClassSplit:
    dataset = load_embedded()
    images = all_images(dataset)
    parts = [select_classes(images, names) for names in EMBEDDED_PARTS]
    return ClassSplit(EMBEDDED, *parts, digest=digest_of(parts))


def load_cifar_split(
    name: str, root: Path, counts: tuple[int, int] = (50_000, 10_000)
) -> ClassSplit:
    """CIFAR-FS or FC100 from the files of CIFAR-100 below `root`."""
    dataset = load_cifar(CIFAR100, root, counts)
    images = all_images(dataset)
    split = SPLITS[name]
    others = [name for name in images.classes if name not in (*split["val"], *split["test"])]
    names = (others, split["val"], split["test"])
    parts = [select_classes(images, chosen) for chosen in names]
    return ClassSplit(name, *parts, digest=digest_of(parts))

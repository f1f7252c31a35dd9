"""CIFAR-FS and FC100: the 100 classes of CIFAR-100, 600 images each, shared out in two ways.

CIFAR-FS: Bertinetto et al., 2019 (https://arxiv.org/abs/1805.08136), by class. FC100: Oreshkin et
al., 2018 (https://arxiv.org/abs/1805.10123), by superclass, so that test classes are farther away.
"""

from pathlib import Path

from neural_similarity.lab.data.cifar import CIFAR100, load_cifar
from neural_similarity.lab.data.class_split import ClassSplit, all_images, select_classes
from neural_similarity.lab.data.images import digest_of

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


def load_cifar_split(
    name: str, root: Path, counts: tuple[int, int] = (50_000, 10_000)
) -> ClassSplit:
    """CIFAR-FS or FC100 from the files of CIFAR-100 below `root`.

    Args:
        name: "cifar-fs" or "fc100".
        root: folder of the data sets.
        counts: images that the two parts of CIFAR-100 must hold.

    Raises:
        FileNotFoundError: CIFAR-100 is missing.
        ValueError: its files are damaged.
    """
    dataset = load_cifar(CIFAR100, root, counts)
    images = all_images(dataset)
    split = SPLITS[name]
    others = [name for name in images.classes if name not in (*split["val"], *split["test"])]
    names = (others, split["val"], split["test"])
    parts = [select_classes(images, chosen) for chosen in names]
    return ClassSplit(name, *parts, digest=digest_of(parts))

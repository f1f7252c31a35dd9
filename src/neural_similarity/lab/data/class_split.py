"""Few-shot data sets, whose training, validation and test classes differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from neural_similarity.choices import require_known
from neural_similarity.lab.data.images import Dataset, Images, generator

PARTS = ("train", "val", "test")
SHARES = (64, 16, 20)
"""Classes of the three parts per hundred, as in Mini-ImageNet."""


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Images of three disjoint sets of classes.

    Args:
        name: of the data set.
        train: images to learn from.
        val: images to choose by, or to learn from as well.
        test: images to test on.
        digest: SHA-256 of all, see :func:`digest_of`, or of the files that they were read from.

    Raises:
        ValueError: two parts have a class in common.
    """

    name: str
    train: Images
    val: Images
    test: Images
    digest: str

    def __post_init__(self) -> None:
        check_disjoint({part: self.part(part).classes for part in PARTS}, self.name)

    def part(self, name: str) -> Images:
        """The images of "train", "val", "test", or "train+val"."""
        require_known("name", name, (*PARTS, "train+val"))
        return join(self.train, self.val) if name == "train+val" else getattr(self, name)


def join(first: Images, second: Images) -> Images:
    """The images of both, whose classes differ."""
    labels = torch.cat([first.labels, second.labels + len(first.classes)])
    pixels = torch.cat([first.pixels, second.pixels])
    return Images(pixels, labels, first.classes + second.classes)


def all_images(dataset: Dataset) -> Images:
    """The training and test images of a data set that is held in memory."""
    parts = [part for part in (dataset.train, dataset.test) if isinstance(part, Images)]
    pixels, labels = ([getattr(part, field) for part in parts] for field in ("pixels", "labels"))
    return Images(torch.cat(pixels), torch.cat(labels), dataset.train.classes)


def select_classes(images: Images, names: Sequence[str]) -> Images:
    """The images of the classes `names`, in the order of `images`.

    Raises:
        ValueError: a name is not one of its classes.
    """
    missing = [name for name in names if name not in images.classes]
    if missing:
        raise ValueError(f"`names` must be classes of the data, got {missing[0]!r}")
    positions = torch.full((len(images.classes),), -1)
    for label, name in enumerate(names):
        positions[images.classes.index(name)] = label
    labels = positions[images.labels]
    chosen = (labels >= 0).nonzero().flatten()
    return Images(images.pixels[chosen], labels[chosen], tuple(names))


def check_disjoint(classes: Mapping[str, Iterable[str]], where: object) -> None:
    """Check that no class is in two parts.

    Args:
        classes: the names of the classes of each part.
        where: what the error names.
    """
    seen: dict[str, str] = {}
    for part, names in classes.items():
        for name in names:
            if seen.setdefault(name, part) != part:
                raise ValueError(
                    f"{where}: the parts must have no class in common, got {name!r} in "
                    f"{seen[name]} and {part}"
                )


def random_split(names: list[str], seed: int = 0) -> dict[str, tuple[str, ...]]:
    """Distribute classes over the three parts at random, 64, 16 and 20 per hundred.

    Every part gets a class at least.

    Raises:
        ValueError: there are fewer than three classes.
    """
    if len(names) < len(PARTS):
        raise ValueError(f"`names` must hold at least {len(PARTS)} classes, got {len(names)}")
    order = torch.randperm(len(names), generator=generator("class split", seed)).tolist()
    val, test = (max(1, round(len(names) * share / 100)) for share in SHARES[1:])
    cuts = {"train": order[val + test :], "val": order[:val], "test": order[val : val + test]}
    return {part: tuple([names[i] for i in sorted(cuts[part])]) for part in PARTS}

"""A folder in ImageNet's layout that is small enough for a test: JPEG files of several sizes."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = tuple(f"n{number:08d}" for number in range(12))
EACH = {"train": 4, "val": 2}


def write_jpeg(path, seed, size=(40, 32)):
    """A smooth random picture of (width, height) `size`, so that JPEG keeps most of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(256, size=(4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)


def make_imagenet(root, classes=CLASSES):
    """Four training and two test images of every class; returns `root`."""
    for part, each in EACH.items():
        for label, name in enumerate(classes):
            for number in range(each):
                seed = 1000 * label + 10 * number + len(part)
                size = (36 + 4 * number, 32 + 3 * (label % 3))
                write_jpeg(Path(root, part, name, f"{name}_{number}.JPEG"), seed, size)
    return Path(root)

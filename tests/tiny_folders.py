"""Folders and lists of tiny random pictures, in the parts of a few-shot data set."""

import csv

import numpy as np
from PIL import Image

WANTED = {"train": ["ant", "bee"], "val": ["cat"], "test": ["dog"]}


def picture(path, seed=0, size=6, *, grey=False, mode=None):
    """Save a random image, of one size or of (width, height), and return its pixels (c, h, w)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = (size, size) if isinstance(size, int) else size
    shape = (height, width) if grey else (height, width, 3)
    values = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path)
    return values[None] if grey else values.transpose(2, 0, 1)


def write_classes(folder, names=("ant", "bee"), each=2, size=(6, 5), **options):
    """Class folders of random pictures; the pixels in the order of sorted names."""
    pixels = [
        picture(folder / name / f"{i}.png", 100 * len(name) + ord(name[0]) + i, size, **options)
        for name in sorted(names)
        for i in range(each)
    ]
    return np.stack(pixels)


def write_folders(folder, split=WANTED, each=2):
    """Folders part/class; the pixels of each part, in order."""
    pixels, seed = {}, 0
    for part, names in split.items():
        for name in names:
            for i in range(each):
                seed += 1
                found = picture(folder / part / name / f"{i}.png", seed)
                pixels.setdefault(part, []).append(found)
    return {part: np.stack(found) for part, found in pixels.items()}


def write_csv(folder, split=WANTED, each=2):
    """Images beside three lists, interleaved as a csv may have them; the folder."""
    folder.mkdir(exist_ok=True)
    for part, names in split.items():
        rows = [(f"{name}{i}.png", name) for i in range(each) for name in names]
        with (folder / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("filename", "label"), *rows])
        for name, _ in rows:
            picture(folder / "images" / name, sum(map(ord, name)))
    return folder


def check(split, each=2):
    for part, names in WANTED.items():
        images = split.images_of_part(part)
        assert list(images.classes) == names
        assert images.labels.tolist() == [i for i in range(len(names)) for _ in range(each)]

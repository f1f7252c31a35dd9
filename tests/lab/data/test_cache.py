"""The cache of pixels, and pickles of arrays that it is made of."""

import io
import itertools
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import Killed
from tiny_folders import WANTED, check, picture, write_folders

from neural_similarity.lab.data import cache, load_split
from neural_similarity.lab.data.images import digest_of


def counted(name, folder, **options):
    """What loads a data set, and what it tells while it reads."""
    counts = []

    def load():
        return load_split(name, folder, progress=lambda *count: counts.append(count), **options)

    return load, counts


def test_pictures_are_decoded_once(tmp_path, monkeypatch):
    """And again where there are others, where the cache is missing, or of another version."""
    write_folders(tmp_path)
    load, counts = counted("classes", tmp_path, image_size=6)
    first = load()
    assert counts == [(i, 8) for i in range(1, 9)]
    assert load().digest == first.digest
    assert len(counts) == 8
    (tmp_path / "cache-6.pt").unlink()
    assert load().digest == first.digest
    assert len(counts) == 8 + 8
    picture(tmp_path / "train" / "ant" / "9.png", 99)
    third = load()
    assert len(counts) == 8 + 8 + 9
    assert third.digest != first.digest
    assert len(third.train) == 5
    monkeypatch.setattr(cache, "CACHE_VERSION", cache.CACHE_VERSION + 1)
    load()
    assert len(counts) == 8 + 8 + 9 + 9


def test_two_that_begin_at_once_decode_once(tmp_path):
    write_folders(tmp_path)
    counts = []

    def load(progress):
        return load_split("classes", tmp_path, image_size=6, progress=progress)

    with ThreadPoolExecutor() as pool:
        others = []

        def start_another(*_):
            if not others:
                others.append(pool.submit(load, lambda *count: counts.append(count)))
                wait(others, timeout=0.3)

        first = load(start_another)
        assert others[0].result().digest == first.digest
    assert not counts


def test_the_digest_tells_which_class_has_which_images(tmp_path):
    """The same pictures under other names, or one of them in another class."""
    digests = set()
    for number, train in enumerate((["ant", "bee"], ["ant", "boa"])):
        write_folders(tmp_path / str(number), WANTED | {"train": train})
        digests.add(load_split("classes", tmp_path / str(number), image_size=6).digest)
    moved = tmp_path / "0" / "train"
    (moved / "bee" / "0.png").rename(moved / "ant" / "2.png")
    digests.add(load_split("classes", tmp_path / "0", image_size=6).digest)
    assert len(digests) == 3


def pickles(folder, values, protocol=None):
    for part, content in values.items():
        path = folder / f"mini-imagenet-cache-{part}.pkl"
        path.write_bytes(pickle.dumps(content, protocol))


def arrays(names, each=2):
    shape, random = (each * len(names), 84, 84, 3), np.random.default_rng(len(names))
    data = random.integers(256, size=shape, dtype=np.uint8)
    # Positions of the classes alternate.
    positions = {name: list(range(i, len(data), len(names))) for i, name in enumerate(names)}
    return {"image_data": data, "class_dict": positions}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_mini_imagenet_as_pickles(tmp_path, protocol):
    values = {part: arrays(names) for part, names in WANTED.items()}
    pickles(tmp_path, values, protocol)
    split = load_split("mini-imagenet", tmp_path)
    check(split)
    expected = values["train"]["image_data"][3].transpose(2, 0, 1)
    assert np.array_equal(split.train.pixels[3].numpy(), expected)  # of bee: positions 1 and 3
    with pytest.raises(ValueError, match="`image_size` must be 84 for these pickles, got 28"):
        load_split("mini-imagenet", tmp_path, image_size=28)


def test_pickles_are_read_once(tmp_path):
    values = {part: arrays(names) for part, names in WANTED.items()}
    pickles(tmp_path, values)
    load, counts = counted("mini-imagenet", tmp_path)
    first = load()
    assert counts == [(4, None), (6, None), (8, None)]
    assert first.digest == digest_of((first.train, first.val, first.test))
    second = load()
    check(second)
    assert len(counts) == 3
    assert second.digest == first.digest
    assert torch.equal(second.train.pixels, first.train.pixels)
    second.test.pixels.zero_()
    assert torch.equal(load().test.pixels, first.test.pixels)
    values["test"]["image_data"][0] += 1  # as many bytes
    pickles(tmp_path, values)
    third = load()
    assert len(counts) == 6
    assert third.digest != first.digest
    expected = values["test"]["image_data"][0].transpose(2, 0, 1)
    assert np.array_equal(third.test.pixels[0].numpy(), expected)


def test_older_pickles_have_labels(tmp_path):
    for part, names in WANTED.items():
        data = arrays(names)["image_data"]
        name = "train_phase_train" if part == "train" else part
        path = tmp_path / f"miniImageNet_category_split_{name}.pickle"
        labels = [names[i % len(names)] for i in range(len(data))]
        path.write_bytes(pickle.dumps({"data": data, "labels": labels}))
    check(load_split("mini-imagenet", tmp_path))


class Malicious:
    """Nothing handles what it does where it is run."""

    def __reduce__(self):
        return sys.exit, ("a program ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"image_data": Malicious()}, "cache-test.pkl.*exit is refused"),
        (
            {"image_data": np.zeros((2, 84, 84))},
            r"cache-test.pkl.*must hold images, uint8 \(n, h, w, c\)",
        ),
        (
            arrays(["dog"]) | {"class_dict": {"dog": [0, 0]}},
            "cache-test.pkl.*must give the class of each of its 2",
        ),
        (
            {"image_data": np.zeros((2, 28, 28, 3), np.uint8), "class_dict": {"dog": [0, 1]}},
            r"must hold images of one shape, got \[\(3, 28, 28\), ",
        ),
    ],
)
def test_bad_pickles(tmp_path, content, message):
    pickles(tmp_path, {part: arrays(names) for part, names in WANTED.items()} | {"test": content})
    with pytest.raises(ValueError, match=message):
        load_split("mini-imagenet", tmp_path)


def test_pixels_of_other_files_are_never_taken(tmp_path, monkeypatch):
    """Killed at any point while the cache of changed files is made, then the files change back."""
    path = tmp_path / "test" / "dog" / "2.bmp"
    write_folders(tmp_path)
    for step in range(1, 12):
        first = picture(path, 98)
        os.utime(path, ns=(0, 0))
        load_split("classes", tmp_path, image_size=6)
        picture(path, 99)
        os.utime(path, ns=(1, 1))
        done = killed_at(step, monkeypatch, lambda: load_split("classes", tmp_path, image_size=6))
        picture(path, 98)
        os.utime(path, ns=(0, 0))
        again = load_split("classes", tmp_path, image_size=6)
        assert np.array_equal(again.test.pixels[2].numpy(), first), f"killed at step {step}"
        if done:
            break
    assert done
    assert step > 3


def killed_at(step, monkeypatch, work):
    """Do `work` until its `step`th change of a name or flush to the disk; whether it is done."""
    numbers = itertools.count(1)

    def counted(change):
        def changed(*args, **options):
            if next(numbers) >= step:
                raise Killed
            return change(*args, **options)

        return changed

    with monkeypatch.context() as patch:
        names = ("replace", "rename", "unlink", "write_text")
        for place, name in ((os, "fsync"), *((Path, name) for name in names)):
            patch.setattr(place, name, counted(getattr(place, name)))
        try:
            work()
        except Killed:
            return False
    return True


def test_a_changed_byte_of_the_cache_is_noticed_and_no_program_run(tmp_path):
    """Wherever it is: in the pixels, in what describes them, or at the end that was cut off."""
    write_folders(tmp_path)
    split = load_split("classes", tmp_path, image_size=6)
    path = tmp_path / "cache-6.pt"
    whole = path.read_bytes()
    program = io.BytesIO()
    torch.save({"version": Malicious()}, program)
    damaged = [whole[:100], whole[:-30], b"", b"{}", program.getvalue()]
    pixels = whole.index(split.train.pixels.numpy().tobytes())
    for place in (pixels, pixels + 431, whole.index(b"signature"), whole.index(b"dog"), 0):
        damaged.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cache-6\.pt must hold the pixels it was made with"):
            load_split("classes", tmp_path, image_size=6)
    path.unlink()
    assert load_split("classes", tmp_path, image_size=6).digest == split.digest

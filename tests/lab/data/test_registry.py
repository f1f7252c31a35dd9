import os
import time
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_folders import picture, write_classes

from neural_similarity.lab.data import NAMES, listing, load_dataset
from neural_similarity.lab.data.fashion_mnist import CLASSES, FILE, unpack_embedded


@pytest.mark.parametrize("test", ["test", "val", "validation", "valid", "Test"])
@pytest.mark.parametrize("grey", [True, False])
def test_train_and_test_folders(tmp_path, test, grey):
    train = write_classes(tmp_path / "train", grey=grey)
    tests = write_classes(tmp_path / test, each=1, grey=grey)
    dataset = load_dataset("folder", tmp_path)
    assert dataset.train.classes == dataset.test.classes == ("ant", "bee")
    assert np.array_equal(dataset.train.pixels.numpy(), train)
    assert np.array_equal(dataset.test.pixels.numpy(), tests)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [0, 1]


@pytest.mark.parametrize("inside", [".", "train"])
def test_class_folders_alone_give_a_fifth_to_the_test(tmp_path, inside):
    whole = write_classes(tmp_path / inside, ("b", "aa"), each=10)
    first, second = load_dataset("folder", tmp_path), load_dataset("folder", tmp_path)
    assert first.digest == second.digest
    assert first.digest[:16] == "d2db769571a9b7bb"  # of which there are records
    assert first.train.labels.tolist() == [0] * 8 + [1] * 8
    assert first.test.labels.tolist() == [0] * 2 + [1] * 2
    together = torch.cat([first.train.pixels, first.test.pixels]).flatten(1).tolist()
    assert sorted(together) == sorted(whole.reshape(20, -1).tolist())


def test_classes_may_be_called_like_parts(tmp_path):
    """A folder that holds images is a class, beside others and within a part."""
    write_classes(tmp_path / "one", ("train", "test", "bus"), each=5)
    dataset = load_dataset("folder", tmp_path / "one")
    assert dataset.train.classes == ("bus", "test", "train")
    assert (len(dataset.train), len(dataset.test)) == (12, 3)
    for part in ("train", "val"):
        write_classes(tmp_path / "two" / part, ("train", "val"), each=2)
    dataset = load_dataset("folder", tmp_path / "two")
    assert dataset.train.classes == dataset.test.classes == ("train", "val")
    picture(tmp_path / "two" / "train" / "overview.png")
    assert load_dataset("folder", tmp_path / "two").digest == dataset.digest


def test_small_classes_give_one_image_and_single_images_nothing(tmp_path):
    write_classes(tmp_path, each=2)
    assert load_dataset("folder", tmp_path).test.labels.tolist() == [0, 1]
    (tmp_path / "bee" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"more than 1 images of the class 'bee' .* got 1"):
        load_dataset("folder", tmp_path)
    (tmp_path / "bee" / "0.png").unlink()
    with pytest.raises(ValueError, match=r"bee must hold images \(\.bmp .*\), got none"):
        load_dataset("folder", tmp_path)


def test_one_colour_image_makes_all_rgb(tmp_path):
    grey = write_classes(tmp_path / "train", ("a",), grey=True)
    colour = picture(tmp_path / "test" / "a" / "0.png", 9, (6, 5))
    dataset = load_dataset("folder", tmp_path)
    assert np.array_equal(dataset.train.pixels.numpy(), np.repeat(grey, 3, axis=1))
    assert np.array_equal(dataset.test.pixels[0].numpy(), colour)


def test_other_files_and_hidden_ones_are_no_images(tmp_path):
    write_classes(tmp_path, each=5)
    (tmp_path / "bee" / "notes.txt").write_text("mine")
    (tmp_path / "bee" / "._0.png").write_text("a file manager's")
    (tmp_path / ".cache").mkdir()
    dataset = load_dataset("folder", tmp_path)
    assert len(dataset.train) + len(dataset.test) == 10
    assert dataset.train.classes == ("ant", "bee")


def test_resize_and_centre_crop(tmp_path):
    """Halving a wide image averages 2x2 blocks; constant blocks stay, the centre is kept."""
    values = np.repeat(np.repeat(np.arange(8, dtype=np.uint8) * 30, 4)[None], 16, axis=0)
    for name in ("a", "b"):
        for suffix in ("png", "bmp"):
            path = tmp_path / name / f"0.{suffix}"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(values if name == "a" else values.T.copy()).save(path)
    dataset = load_dataset("folder", tmp_path, image_size=8)
    assert dataset.train.pixels.shape == (2, 1, 8, 8)
    wide, tall = dataset.train.pixels[:, 0]
    assert torch.equal(wide, tall.T)
    # 32 columns shrink to 16; the middle 8 are the inner four of the eight steps, two columns each.
    middle = wide[4].reshape(4, 2).float().mean(1)
    assert torch.allclose(middle, torch.tensor([60.0, 90.0, 120.0, 150.0]), atol=4)


def test_sizes_differ(tmp_path):
    write_classes(tmp_path / "train", each=3)
    write_classes(tmp_path / "test", each=1)
    picture(tmp_path / "train" / "ant" / "0.png", size=(7, 5))
    match = r"unless `image_size` is given: 7 of 8 are 6x5, got .*train/ant/0\.png of 7x5"
    with pytest.raises(ValueError, match=match):
        load_dataset("folder", tmp_path)


@pytest.mark.parametrize("name", ["folder", "imagenet"])
@pytest.mark.parametrize(("lacking", "having"), [("train", "val"), ("val", "train")])
def test_a_class_in_one_part_only(tmp_path, name, lacking, having):
    write_classes(tmp_path / lacking)
    write_classes(tmp_path / having, ("ant", "bee", "cat"))
    with pytest.raises(ValueError, match=f"got 'cat' in .*{having} and not in .*{lacking}"):
        load_dataset(name, tmp_path)


def test_a_name_that_is_no_text(tmp_path, monkeypatch):
    """As Linux has it, where names are bytes; other systems' disks refuse to make one."""
    write_classes(tmp_path)
    monkeypatch.setattr(listing, "_list_folder", lambda *_: {os.fsdecode(b"\xff.png"): 1})
    with pytest.raises(ValueError, match=r"names in .* must be valid UTF-8, got '\\udcff.png'"):
        load_dataset("folder", tmp_path)


@pytest.mark.parametrize(
    ("place", "options", "error", "message"),
    [
        ("empty", {}, ValueError, "must hold one folder for every class, got none"),
        ("no", {}, FileNotFoundError, "no must be a folder of class folders, got none"),
        ("val/ant/0.png", {}, FileNotFoundError, "0.png must be a folder of .*, got a file"),
        (".", {}, ValueError, "must hold train/ beside val/, got none"),
        (".", {"image_size": 0}, ValueError, "`image_size` must be at least 1, got 0"),
    ],
)
def test_what_is_no_folder_of_classes(tmp_path, place, options, error, message):
    write_classes(tmp_path / "val")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        load_dataset("folder", tmp_path / place, **options)
    with pytest.raises(ValueError, match="for the data sets folder and imagenet, got 32 for embed"):
        load_dataset("embedded", image_size=32)


def test_files_are_sorted_folder_by_folder(tmp_path):
    """As a file manager shows them, though "-" comes before "/"."""
    for name in ("x-1.png", "x/0.png", "x/2.png"):
        picture(tmp_path / "one" / name)
    assert list(listing.list_images(tmp_path).members["one"]) == ["x/0.png", "x/2.png", "x-1.png"]


@pytest.mark.parametrize(
    ("name", "nearest"), [("cifar-10", "cifar10"), ("cifar1000", "cifar100"), ("x", "")]
)
def test_unknown_name(name, nearest):
    match = rf"`name` must be one of {', '.join(NAMES)}, got '{name}'; nearest: {nearest}"
    with pytest.raises(ValueError, match=match):
        load_dataset(name)


FOLDER = files("neural_similarity.lab.data").joinpath("embedded")


def test_embedded_data_set():
    began = time.process_time()
    dataset = load_dataset("embedded", root="a folder that does not exist")
    assert time.process_time() - began < 2
    assert dataset.train.pixels.shape == (8_000, 1, 28, 28)
    assert dataset.test.pixels.shape == (2_000, 1, 28, 28)
    assert dataset.train.labels[:800].bincount().tolist() == [80] * 10
    assert dataset.test.labels.bincount().tolist() == [200] * 10
    assert dataset.train.classes == CLASSES
    # Of images that were compared with the official files.
    assert dataset.digest == "06eb278ace9d01271d8e033e6fe71b557ec5b9fc07220f00a4c954816ee85a2d"


def test_packed_file_is_small_and_licensed():
    assert len(FOLDER.joinpath(FILE).read_bytes()) < 4_000_000
    licence = FOLDER.joinpath("LICENSE").read_text(encoding="utf-8")
    assert "The MIT License (MIT) Copyright © 2017 Zalando SE, https://tech.zalando.com" in licence


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damage_is_noticed(damage):
    packed = bytearray(FOLDER.joinpath(FILE).read_bytes())
    if damage == "flipped":
        packed[2_000_000] ^= 1
    packed = {"truncated": packed[:-1000], "flipped": packed, "empty": b""}[damage]
    with pytest.raises(ValueError, match=r"fashion-mnist-10k\.xz must hold 10,000 images"):
        unpack_embedded(bytes(packed))

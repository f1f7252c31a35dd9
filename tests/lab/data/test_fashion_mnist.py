import time
from importlib.resources import files

import pytest

from neural_similarity.lab.data import load_dataset
from neural_similarity.lab.data.fashion_mnist import CLASSES, FILE, unpack_embedded

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

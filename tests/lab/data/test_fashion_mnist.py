import gzip
import os
import resource
import struct
import time
from importlib.resources import files

import numpy as np
import pytest

from neural_similarity.lab.data import load_dataset
from neural_similarity.lab.data.fashion_mnist import (
    CLASSES,
    FILE,
    load_fashion_mnist,
    unpack_embedded,
)

FOLDER = files("neural_similarity.lab.data").joinpath("embedded")
COUNTS = (30, 20)
PLACES = ["fashion-mnist", "FashionMNIST/raw", "raw", "."]


def arrays(seed=0):
    random = np.random.default_rng(seed)
    for name, count in zip(("train", "t10k"), COUNTS, strict=True):
        pixels = random.integers(256, size=(count, 28, 28), dtype=np.uint8)
        yield name, pixels, np.arange(count) % 10


def write(folder, packed=True):
    """The official files, byte by byte, with the sizes in COUNTS."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels, labels in arrays():
        files = {
            f"{name}-images-idx3-ubyte": struct.pack(">IIII", 2051, len(pixels), 28, 28)
            + pixels.tobytes(),
            f"{name}-labels-idx1-ubyte": struct.pack(">II", 2049, len(labels))
            + labels.astype(np.uint8).tobytes(),
        }
        for file, content in files.items():
            if packed:
                (folder / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / file).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("place", PLACES)
def test_reads_the_official_files(tmp_path, place, packed):
    write(tmp_path / place, packed)
    dataset = load_fashion_mnist(tmp_path, COUNTS)
    for part, (_, pixels, labels) in zip((dataset.train, dataset.test), arrays(), strict=True):
        assert np.array_equal(part.pixels.numpy(), pixels[:, None])
        assert np.array_equal(part.labels.numpy(), labels)
    assert dataset.train.classes[0] == "T-shirt/top"
    assert dataset.name == "fashion-mnist"


def test_one_file_is_missing(tmp_path):
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    match = rf"t10k-labels-idx1-ubyte\.gz is missing; run `nsim data .* --data {tmp_path}"
    with pytest.raises(FileNotFoundError, match=match):
        load_fashion_mnist(tmp_path, COUNTS)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no gzip"])
def test_damaged_gzip(tmp_path, damage):
    write(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= damage == "flipped"
    content = {"truncated": content[:-5], "flipped": content, "no gzip": b"<html>"}[damage]
    path.write_bytes(bytes(content))
    match = r"train-images-idx3-ubyte\.gz must be a whole gzip file.*; delete the file"
    with pytest.raises(ValueError, match=match):
        load_fashion_mnist(tmp_path, COUNTS)


def test_another_number_of_images(tmp_path):
    write(tmp_path)
    match = r"train-images.*\.gz must be an IDX file of uint8 \(60000, 28, 28\): 47,040,016 bytes"
    with pytest.raises(ValueError, match=match):
        load_dataset("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    ("file", "size", "last", "message"),
    [
        ("t10k-labels-idx1-ubyte", 27, b"", "must be .* 28 bytes .* got 27"),
        ("train-labels-idx1-ubyte", 37, b"\x0a", "must hold labels below 10, got 10"),
        ("t10k-images-idx3-ubyte", 10 << 30, b"", "must be .* got more bytes"),
    ],
    ids=["truncated", "label", "ten sparse gibibytes"],
)
def test_damaged_files(tmp_path, file, size, last, message):
    write(tmp_path, packed=False)
    os.truncate(tmp_path / file, size)
    with (tmp_path / file).open("ab") as end:
        end.write(last)
    with pytest.raises(ValueError, match=f"{file} {message}"):
        load_fashion_mnist(tmp_path, COUNTS)


def test_ten_gibibytes_in_ten_megabytes(tmp_path):
    """Refused within seconds and without the memory that they would take."""
    write(tmp_path)
    member = gzip.compress(bytes(64 << 20), compresslevel=1)
    with (tmp_path / "train-images-idx3-ubyte.gz").open("wb") as file:
        for _ in range(160):
            file.write(member)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ValueError, match=r"train-images.*\.gz must be an IDX .* got more bytes"):
        load_fashion_mnist(tmp_path, COUNTS)
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


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

import gzip
import struct

import numpy as np
import pytest

from neural_similarity.lab.data import load
from neural_similarity.lab.data.fashion_mnist import load_fashion_mnist

COUNTS = (30, 20)
PLACES = ["fashion-mnist", "FashionMNIST/raw", "raw", "."]


def arrays(seed=0):
    random = np.random.default_rng(seed)
    for name, count in zip(("train", "t10k"), COUNTS, strict=True):
        yield (
            name,
            random.integers(256, size=(count, 28, 28), dtype=np.uint8),
            np.arange(count) % 10,
        )


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


def test_nothing_there(tmp_path):
    match = r"fashion-mnist/train-images-idx3-ubyte\.gz is missing; run `nsim data fashion-mnist"
    with pytest.raises(FileNotFoundError, match=match):
        load("fashion-mnist", tmp_path)


def test_one_file_is_missing(tmp_path):
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    match = (
        rf"t10k-labels-idx1-ubyte\.gz is missing; run `nsim data fashion-mnist --data {tmp_path}"
    )
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
    match = (
        r"train-images-idx3-ubyte\.gz must be a whole gzip file.*; delete the file and run `nsim"
    )
    with pytest.raises(ValueError, match=match):
        load_fashion_mnist(tmp_path, COUNTS)


def test_another_number_of_images(tmp_path):
    write(tmp_path)
    match = r"train-images.*\.gz must be an IDX file of uint8 \(60000, 28, 28\): 47,040,016 bytes"
    with pytest.raises(ValueError, match=match):
        load("fashion-mnist", tmp_path)


def test_truncated_file(tmp_path):
    write(tmp_path, packed=False)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte must be .* 28 bytes .* got 27"):
        load_fashion_mnist(tmp_path, COUNTS)


def test_labels_beyond_the_classes(tmp_path):
    write(tmp_path, packed=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")
    with pytest.raises(
        ValueError, match=r"train-labels-idx1-ubyte must hold labels below 10, got 10"
    ):
        load_fashion_mnist(tmp_path, COUNTS)

import importlib.util
import lzma
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_similarity.lab.data import Images, load
from neural_similarity.lab.data.fashion_mnist import CLASSES, FILE, unpack

FOLDER = files("neural_similarity.lab.data").joinpath("embedded")
SCRIPT = Path(__file__).parents[3] / "scripts" / "make_embedded.py"


def test_embedded_data_set():
    began = time.process_time()
    dataset = load("embedded", root="a folder that does not exist")
    assert time.process_time() - began < 2
    assert dataset.train.pixels.shape == (8_000, 1, 28, 28)
    assert dataset.test.pixels.shape == (2_000, 1, 28, 28)
    assert dataset.train.labels[:800].bincount().tolist() == [80] * 10
    assert dataset.test.labels.bincount().tolist() == [200] * 10
    assert dataset.train.classes == CLASSES
    # Of images that were compared with the official files.
    assert dataset.digest == "06eb278ace9d01271d8e033e6fe71b557ec5b9fc07220f00a4c954816ee85a2d"


def test_images_fit_their_labels():
    """Nearest class mean, fitted to the training part, knows most test images."""
    dataset = load("embedded")
    train, test = (p.pixels.flatten(1).float() for p in (dataset.train, dataset.test))
    means = torch.stack([train[dataset.train.labels == c].mean(0) for c in range(10)])
    accuracy = (torch.cdist(test, means).argmin(1) == dataset.test.labels).float().mean()
    assert accuracy > 0.6


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
    with pytest.raises(
        ValueError, match=r"fashion-mnist-10k\.xz must hold 10,000 images .*install"
    ):
        unpack(bytes(packed))


def test_script_packs_what_the_package_unpacks(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_embedded", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FILTERS", [{"id": lzma.FILTER_LZMA2, "preset": 0}])  # faster
    random = torch.Generator().manual_seed(0)
    parts = []
    for count in (9_000, 2_500):
        values = torch.randint(256, (count, 1, 1, 1), dtype=torch.uint8, generator=random)
        pixels = values.repeat(1, 1, 28, 28)
        parts.append(Images(pixels, torch.randperm(count, generator=random) % 10, CLASSES))
    packed = script.pack(*parts)
    for part, unpacked, each in zip(parts, unpack(packed), (800, 200), strict=True):
        for c in range(10):
            expected = part.pixels[part.labels == c][:each, 0].numpy()
            assert np.array_equal(unpacked[c], expected)

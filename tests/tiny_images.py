"""A data set small enough to train on in a blink: bright and dark squares in four classes."""

import contextlib
from dataclasses import replace
from functools import partial

import pytest
import torch

from neural_similarity import visualize
from neural_similarity.lab import data, session
from neural_similarity.lab.data import Dataset, Images
from neural_similarity.lab.train import Recipe, fitting
from neural_similarity.lab.train.runtime import cpu_threads
from neural_similarity.nn import Diagonal, Dynamic, SphereNet

LOAD, DRAW, DRAW_CURVES = data.load_dataset, visualize.draw, fitting.draw_learning_curves
CLASSES = ("up", "down", "left", "right")
TINY = Recipe(
    dataset="embedded",
    width=0.1,
    similarity=Dynamic(Diagonal(), predictor=SphereNet(hidden=4)),
    steps=6,
    drops=(4,),
    batch_size=8,
    crop=1,
    log_every=2,
    precision="fp32",
)


def make_images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    pixels = torch.randint(0, 128, (count, 1, 8, 8), generator=generator)
    for label, half in enumerate([(slice(4), slice(8)), (slice(4, 8), slice(8))]):
        pixels[labels == label, 0, *half] += 127
        pixels[labels == label + 2, 0, *half[::-1]] += 127
    return Images(pixels.to(torch.uint8), labels, CLASSES)


def make_dataset(test_seed=1):
    return Dataset("tiny", make_images(64, 0), make_images(32, test_seed))


def use_tiny_images(patch):
    """Every data set is the tiny one and no pictures are drawn, until `patch` is undone."""
    patch.setattr(data, "load_dataset", lambda *_, **__: make_dataset())
    patch.setattr(visualize, "draw", lambda *_: [])
    patch.setattr(fitting, "draw_learning_curves", lambda *_: None)


def train_tiny(folder, **changes):
    return session.train(replace(TINY, **changes), out=folder / "run", device="cpu")


@contextlib.contextmanager
def world(use):
    """What `use` patches, until the end; one thread makes every sum."""
    with cpu_threads(1), pytest.MonkeyPatch.context() as patch:
        use(patch)
        yield


tiny_world = partial(world, use_tiny_images)


@pytest.fixture
def tiny(monkeypatch):
    """See `use_tiny_images`; a test's own patches over these are undone before them."""
    use_tiny_images(monkeypatch)

"""A few-shot data set small enough to train on in a blink: 10 classes of noisy patterns."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_images import world

from neural_similarity.lab import data, session
from neural_similarity.lab.data import ClassSplit, Images
from neural_similarity.lab.data.images import digest_of
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train import fitting

LOAD, DRAW_CURVES = data.load_split, fitting.draw_learning_curves
PARTS = {"train": (0, 5), "val": (5, 7), "test": (7, 10)}
TINY = FewShotRecipe(
    dataset="embedded",
    width=0.1,
    steps=6,
    drops=(4,),
    batch_size=8,
    ways=2,
    shots=2,
    queries=3,
    select_ways=2,
    select_tasks=4,
    evaluate_every=2,
    crop=1,
    log_every=2,
    precision="fp32",
)
BY_TASKS = replace(TINY, method="proto", meta_batch=2, select_on="val", checkpoint_every=3)
BY_NAMES = replace(TINY, select_on="val", method="nearest-neighbour", checkpoint_every=3)


def make_images(first, last, each=12, seed=0):
    """Images (16 pixels) of the classes "c<first>" to "c<last - 1>": a pattern and noise."""
    random = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 160, (10, 1, 1, 16, 16), generator=random)[first:last]
    noise = torch.randint(0, 96, (last - first, each, 1, 16, 16), generator=random)
    labels = torch.arange(last - first).repeat_interleave(each)
    pixels = (patterns + noise).flatten(0, 1).to(torch.uint8)
    return Images(pixels, labels, tuple(f"c{i}" for i in range(first, last)))


def make_split(each=12):
    parts = [make_images(*PARTS[part], each) for part in PARTS]
    return ClassSplit("tiny", *parts, digest=digest_of(parts))


def use_tiny_classes(patch):
    """Every few-shot data set is the tiny one, no curves are drawn, until `patch` is undone."""
    patch.setattr(data, "load_split", lambda *_, **__: make_split())
    patch.setattr(fitting, "draw_learning_curves", lambda *_: None)


tiny_classes_world = partial(world, use_tiny_classes)


@pytest.fixture
def tiny_classes(monkeypatch):
    """See `use_tiny_classes`; a test's own patches over these are undone before them."""
    use_tiny_classes(monkeypatch)


def train(folder, recipe=TINY, **options):
    return session.train(recipe, out=folder / "run", device="cpu", **options)

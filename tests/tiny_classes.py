"""A few-shot data set small enough to train on in a blink: 10 classes of noisy patterns."""

import contextlib

import pytest
import torch

from neural_similarity import data
from neural_similarity.data import ClassSplit, Images
from neural_similarity.data.class_split import digest_of
from neural_similarity.fewshot.recipe import FewShotRecipe

LOAD = data.load_split
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


@contextlib.contextmanager
def tiny_classes_world():
    """Every few-shot data set is the tiny one, and one thread makes every sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load_split", lambda *_, **__: make_split())
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny_classes():
    """See `tiny_classes_world`."""
    with tiny_classes_world():
        yield

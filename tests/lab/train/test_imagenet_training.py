"""The ImageNet recipes on a small folder of JPEG files, killed in the middle of an epoch too."""

import json
import os
import signal
from dataclasses import replace

import kills
import pytest
import torch
from kills import outcome
from tiny_imagenet import CLASSES, make_imagenet

from neural_similarity import visualize
from neural_similarity.lab import session
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.session import load, resume, train
from neural_similarity.lab.train import fitting
from neural_similarity.lab.train.journal import Journal
from neural_similarity.nn import Diagonal, Dynamic, SphereNet

NAME = "imagenet-cnn10-dynamic-dns"
STEPS = 9
"""One and a half epochs: 48 images are six batches of eight."""
CHANGES = {"width": 0.05, "batch_size": 8, "log_every": 3, "checkpoint_every": 2, "workers": 2}
CHANGES |= {"precision": "fp32", "threads": 1, "image_size": 32}
CHANGES |= {"similarity": Dynamic(Diagonal(), predictor=SphereNet(hidden=4))}


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visualize, "draw", lambda *_: [])
        patch.setattr(fitting, "draw_learning_curves", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_imagenet(tmp_path_factory.mktemp("imagenet"))


def recipe(name=NAME, **changes):
    return replace(RECIPES[name], **CHANGES | {"steps": STEPS, "drops": (4,)} | changes)


@pytest.fixture(scope="module")
def reference(root, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("reference") / "run"
    return train(recipe(), name=NAME, out=out, data_root=root, device="cpu")


def assert_same(run, reference):
    kills.assert_same(outcome(run, "last"), outcome(reference, "last"))


def test_resumed_with_other_workers_it_ends_bit_identical(root, reference, tmp_path, monkeypatch):
    """Ctrl-C after steps of both epochs; decoding here or in processes makes no difference."""
    out = tmp_path / "run"

    def stopping(_journal, done):
        if done in (1, 3, 4, 7):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Journal, "show_step", stopping)
    with pytest.raises(Exception, match="stopped by SIGINT after step 1, saved"):
        train(recipe(workers=0), name=NAME, out=out, data_root=root, device="cpu")
    for step in (3, 4, 7):
        with pytest.raises(Exception, match=f"stopped by SIGINT after step {step}, saved"):
            resume(out, device="cpu")
    assert_same(resume(out, device="cpu"), reference)


def test_summary_has_the_top_5_error_and_is_that_of_the_logits(root, reference):
    summary = json.loads(reference.summary.read_text())
    dataset = session.load_task(reference, root).dataset
    x = reference.preprocess(torch.cat(list(dataset.test.chunks(100))))
    with torch.no_grad():
        order = load(reference)(x).argsort(1, descending=True)[:, :5]
    hits = [label in row for label, row in zip(dataset.test.labels, order, strict=True)]
    assert summary["test_top5_error_percent"] == pytest.approx(100 * (1 - sum(hits) / 24))
    wrong = (order[:, 0] != dataset.test.labels).sum().item()
    assert summary["test_error_percent"] == pytest.approx(100 * wrong / 24)
    assert len(reference.classes) == len(CLASSES)


def test_evaluate_and_inspect_read_the_files_again(reference, monkeypatch, nsim):
    summary = json.loads(reference.summary.read_text())
    told = nsim(f"evaluate {reference.path} --device cpu").out
    assert f"error {summary['test_error_percent']:.2f} %" in told
    assert f"top-5 error {summary['test_top5_error_percent']:.2f} %" in told
    drawn = []
    monkeypatch.setattr(visualize, "draw", lambda _, inputs, __: drawn.append(inputs) or [])
    nsim(f"inspect {reference.path} --device cpu")
    assert [inputs.shape for inputs in drawn] == [(2, 3, 32, 32)]


@pytest.mark.parametrize("name", ["imagenet-cnn10++", "imagenet-resnet18-static-dns"])
def test_other_recipes_train_with_validation(root, tmp_path, name):
    changes = {"steps": 2, "drops": (), "validation": 12, "workers": 0, "evaluate_every": 1}
    # Not 3 channels: torch 2.15 writes past the end in strided 1×1 convolutions of 3 channels,
    # channels last, on CPUs with AVX2 alone.
    changes["width"] = 0.125
    changes["similarity"] = RECIPES[name].similarity
    run = train(recipe(name, **changes), out=tmp_path / "run", data_root=root, device="cpu")
    assert json.loads(run.summary.read_text())["best_checkpoint"]["test_top5_error_percent"] <= 100


def test_data_prints_the_sizes_and_makes_a_layout(root, tmp_path, nsim):
    told = nsim(f"data imagenet --data {root}").out
    assert "48 training and 24 test images of 3x224x224, 12 classes" in told
    told = nsim(f"data cifar10 --source {root} --data {tmp_path}", code=2).err
    assert "--source is for the data set imagenet, got cifar10" in told
    told = nsim(f"data imagenet --source {root} --data {tmp_path}", code=1).err
    assert "must hold images/ and lists *.csv" in told

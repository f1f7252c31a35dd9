"""Every CIFAR-10 recipe, made small, trains, saves, and scores the same when it is loaded."""

import json
from dataclasses import replace

import pytest
from tiny_images import make_dataset
from tiny_images import tiny as tiny

from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import load, train
from neural_similarity.lab.train import evaluate_model
from neural_similarity.lab.train.runtime import choose_runtime

SMALL = {
    **{"dataset": "embedded", "width": 0.1, "crop": 1, "padding": "zero", "precision": "fp32"},
    **{"steps": 2, "drops": (), "batch_size": 8, "checkpoint_every": 1, "threads": 1},
}
FROM_NOTHING = [name for name in RECIPES if name.startswith("cifar10-") and name not in STARTS]
"""Those that start from another run have tests of their own."""


@pytest.mark.long
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", FROM_NOTHING)
def test_a_loaded_run_scores_as_its_summary_says(name, tmp_path):
    run = train(replace(RECIPES[name], **SMALL), out=tmp_path / "run", device="cpu")
    summary = json.loads(run.summary.read_text())
    runtime = choose_runtime("cpu", "fp32", run.recipe.channels_last)
    network = runtime.place_model(load(run))
    scores = evaluate_model(network, make_dataset().test, run.preprocess, runtime)
    assert scores.loss == pytest.approx(summary["test_loss"], rel=1e-6)

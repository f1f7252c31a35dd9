"""Runs that start from others, and the tasks that they are trained on."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_classes import BY_NAMES, BY_TASKS, TINY, make_split, train
from tiny_classes import tiny_classes as tiny_classes

from neural_similarity.lab import data, session
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import load
from neural_similarity.lab.tasks.few_shot.objective import Episodes
from neural_similarity.lab.train import RunError, choose_runtime, read_run
from neural_similarity.lab.train.checkpoint import list_checkpoints, newest_checkpoint
from neural_similarity.nn import Diagonal, Static

pytestmark = pytest.mark.usefixtures("tiny_classes")


@pytest.mark.parametrize("similarity", [None, Static(Diagonal())])
def test_a_run_may_start_from_another(tmp_path, similarity):
    base = train(tmp_path / "base")
    recipe = replace(TINY, method="meta-nsn", similarity=similarity or Static(Diagonal()), lr=1e-9)
    run = train(tmp_path, replace(recipe, start=str(base.path), steps=1, drops=()))
    assert run.preprocess == base.preprocess
    before, after = load(base).state_dict(), load(run).state_dict()
    for name, value in before.items():
        if "classifier" not in name and "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(after[f"backbone.{name}"], value)
    wider = replace(recipe, start=str(base.path), width=0.2)
    with pytest.raises(RunError, match="does not fit"):
        train(tmp_path / "wider", wider)
    environment = json.loads((run.path / "environment.json").read_text())
    facts = {"recipe": "custom", "seed": 0, "classes": "train", "budget": 1.0}
    assert environment["start"].items() >= facts.items()
    assert environment["start"]["config"]["lr"] == TINY.lr


@pytest.mark.parametrize("method", ["meta-nsn", "leo"])
def test_frozen_kernels_need_a_start(tmp_path, method):
    similarity = Static(Diagonal()) if method == "meta-nsn" else None
    with pytest.raises(RunError, match=f"`start` must be .*: {method} freezes kernels"):
        train(tmp_path, replace(TINY, method=method, similarity=similarity))
    assert not (tmp_path / "run").exists()


def test_a_start_knows_no_more_classes_and_no_other_data(tmp_path, monkeypatch):
    base = train(tmp_path / "base", replace(TINY, train_on="train+val"))
    unfinished = train(tmp_path / "unfinished")
    unfinished.summary.unlink()
    with pytest.raises(RunError, match="must be a finished run"):
        train(tmp_path, replace(BY_TASKS, start=str(unfinished.path)))
    recipe = replace(TINY, method="proto", start=str(base.path))
    with pytest.raises(RunError, match=r"on training classes alone.* trained on train\+val"):
        train(tmp_path, recipe)
    train(tmp_path / "both", replace(recipe, train_on="train+val"))
    other = make_split(each=13)
    monkeypatch.setattr(data, "load_split", lambda *_, **__: other)
    with pytest.raises(RunError, match=f"on the same data, whose digest is {other.digest}, got"):
        train(tmp_path, recipe)
    assert not (tmp_path / "run").exists()


def test_what_started_from_another_is_retrained_from_one_of_all_classes(tmp_path):
    base = train(tmp_path / "base", BY_NAMES)
    run = train(tmp_path, replace(BY_TASKS, start=str(base.path)))
    wrong = rf"`start` must be .* train\+val, as {run.path} started from {base.path}, got none"
    with pytest.raises(RunError, match=wrong):
        session.retrain(run, out=tmp_path / "again", device="cpu")
    known = rf"`start` must be .* got {base.path}, trained on train$"
    with pytest.raises(RunError, match=known):
        session.retrain(run, out=tmp_path / "again", device="cpu", start=base.path)
    assert not (tmp_path / "again").exists()
    start = session.retrain(base, out=tmp_path / "start", device="cpu").path
    again = session.retrain(run, out=tmp_path / "again", device="cpu", start=start)
    assert (again.recipe.train_on, again.recipe.start) == ("train+val", str(start))


def test_a_start_is_found_from_any_folder(tmp_path, monkeypatch):
    train(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path, replace(BY_TASKS, start="base/run", steps=1, drops=()))
    monkeypatch.chdir("/")
    read_run(run.path, type(run)).begin_network()


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_what_a_start_does_not_give_is_drawn_by_the_seed(tmp_path, seed, same):
    source = train(tmp_path / "source")
    recipe = replace(TINY, method="anil", start=str(source.path), steps=1, drops=())
    first, other = (
        session.train(
            replace(recipe, seed=s), out=tmp_path / f"{s}-{i}", device="cpu"
        ).begin_network()
        for i, s in enumerate((0, seed))
    )
    assert torch.equal(first.head.weight, other.head.weight) == same


def test_a_run_starts_from_the_best_checkpoint_where_there_is_one(tmp_path):
    base = train(tmp_path / "base", replace(BY_NAMES, seed=2))
    assert newest_checkpoint(base.best).name != list_checkpoints(base.checkpoints)[-1].name
    recipe = replace(BY_TASKS, method="matching", start=str(base.path), steps=1, drops=())
    run = train(tmp_path, recipe)
    expected = load(base, "best")[:-1].state_dict()
    found = run.begin_network().backbone.state_dict()
    assert all(torch.equal(v, found[n]) for n, v in expected.items())


def test_a_start_of_as_many_classes_gives_its_classifier(tmp_path):
    base = train(tmp_path / "base")
    run = train(tmp_path, replace(TINY, seed=1, start=str(base.path), steps=1, drops=()))
    assert torch.equal(run.begin_network()[-1].weight, load(base)[-1].weight)


def test_a_start_has_the_network_of_what_starts_from_it():
    for name, source in STARTS.items():
        ours, theirs = RECIPES[name], RECIPES[source]
        assert (ours.model, ours.width) == (theirs.model, theirs.width), name


@pytest.mark.parametrize(("train_on", "classes"), [("train", 5), ("train+val", 7)])
def test_networks_and_inputs_are_of_the_classes_of_training(tmp_path, train_on, classes):
    run = train(tmp_path, replace(TINY, train_on=train_on))
    assert run.preprocess == Preprocess.fit_to_images(make_split().images_of_part(train_on))
    assert run.classes == tuple(f"c{i}" for i in range(classes))
    assert run.build()[-1].out_features == classes


def support(recipe, of):
    episodes = Episodes(recipe, of, Preprocess.raw_values(1), choose_runtime("cpu", "fp32"))
    return episodes.training_task(0).support


def test_the_seed_draws_other_tasks():
    whole, of = replace(BY_TASKS, crop=0, flip=False), make_split().train
    assert not torch.equal(support(whole, of), support(replace(whole, seed=1), of))


def test_training_tasks_are_cropped_as_the_recipe_says():
    """All images are one, so that tasks differ in their windows alone."""
    found = make_split().train
    one = Images(found.pixels[:1].repeat(len(found), 1, 1, 1) | 1, found.labels, found.classes)
    assert not torch.equal(support(BY_TASKS, one), support(replace(BY_TASKS, seed=1), one))
    assert support(BY_TASKS, one).min() == 0
    assert support(replace(BY_TASKS, padding="symmetric"), one).min() > 0

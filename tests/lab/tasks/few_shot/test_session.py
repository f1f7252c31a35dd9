"""Few-shot runs, those that start from others, and the commands that make and evaluate them."""

import gc
import json
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from kills import Killed, assert_same, killed_after, outcome
from refusals import refusals
from tiny_classes import (
    BY_NAMES,
    BY_TASKS,
    DRAW_CURVES,
    LOAD,
    TINY,
    make_split,
    tiny_classes_world,
    train,
)
from torch import nn

from neural_similarity.lab import cli, data, session
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import load
from neural_similarity.lab.tasks.few_shot import partial
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate_method
from neural_similarity.lab.tasks.few_shot.evaluation import read_evaluation
from neural_similarity.lab.tasks.few_shot.heads import CosineFineTuning
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.objective import Episodes
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe, retraining_recipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun, load_method
from neural_similarity.lab.tasks.few_shot.static import StaticTuning
from neural_similarity.lab.tasks.few_shot.task import FewShotTask, check_task_sizes
from neural_similarity.lab.tasks.few_shot.tasks import draw_tasks
from neural_similarity.lab.tasks.few_shot.tuning import Tuning
from neural_similarity.lab.train import RunError, choose_runtime, fitting, read_run
from neural_similarity.lab.train.checkpoint import list_checkpoints, newest_checkpoint
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json
from neural_similarity.nn import Diagonal, SphereNet, Static
from neural_similarity_paper.rival_methods.leo import Latent, Leo

pytestmark = pytest.mark.usefixtures("tiny_classes")


RUNTIME = choose_runtime("cpu", "fp32")


def scored(run, which, images, tasks, method=None):
    """The right answers of a run's method in tasks."""
    method = load_method(run, which, method)
    return evaluate_method(method, images, tasks, preprocess=run.preprocess, runtime=RUNTIME)


def training_tasks(recipe=BY_TASKS, images=None, preprocess=None):
    images = make_split().train if images is None else images
    preprocess = preprocess or data.Preprocess.fit_to_images(images)
    return Episodes(recipe, images, preprocess, RUNTIME)


@pytest.mark.long
@pytest.mark.parametrize("method", ["proto", "fine-tuning", "leo"])
def test_resumed_runs_end_bit_identical(tmp_path, monkeypatch, method):
    """Killed at the steps 4 and 5, both behind the checkpoint of step 3; LEO draws every time."""
    recipe = {"proto": BY_TASKS, "fine-tuning": BY_NAMES}.get(method)
    if recipe is None:
        latent = Latent(size=4, rate=0.01, tuning_rate=0.01)  # 3 features bear no larger steps
        leo = replace(METHODS["leo"], build=lambda network, _: Leo(network, latent))
        monkeypatch.setitem(METHODS, "leo", leo)
        start = str(train(tmp_path / "start").path)
        recipe = replace(BY_TASKS, method=method, start=start)
    expected = outcome(train(tmp_path / "whole", recipe), "last", "best")
    killed_after(4, lambda: train(tmp_path, recipe))
    torch.rand(5)
    killed_after(5, lambda: session.resume(tmp_path / "run", device="cpu"))
    found = session.resume(tmp_path / "run", device="cpu")
    assert_same(outcome(found, "last", "best"), expected)


def test_the_best_step_on_validation_classes_is_kept(tmp_path):
    run = train(tmp_path, BY_TASKS)
    lines = [line for line in read_lines(run.metrics) if "validation_accuracy" in line]
    steps = [(line["step"], line["batch_norm"]) for line in lines]
    assert steps == [(step, "running") for step in (2, 4, 6)]
    best = max(lines, key=lambda line: line["validation_accuracy"])
    summary = json.loads(run.summary.read_text())
    facts = {key: best[key] for key in ("step", "validation_accuracy", "batch_norm")}
    assert summary["best_checkpoint"] == facts
    split, sizes = make_split(), BY_TASKS.select_sizes
    tasks = draw_tasks(split.val, sizes, 4, seed=1, data=split.digest, part="val")
    right = scored(run, "best", split.val, tasks)
    mean = right.double().mean().item() / len(sizes.query_labels)
    assert mean == best["validation_accuracy"]


@pytest.mark.parametrize("method", ["proto", "maml", "fine-tuning"])
def test_training_has_its_precision_and_every_score_is_in_float32(tmp_path, nsim, passes, method):
    kind = BY_TASKS if METHODS[method].episodic else BY_NAMES
    run = train(tmp_path, replace(kind, method=method, precision="bf16"))
    assert json.loads(run.summary.read_text())["score_precision"] == "fp32"
    for words, precision in (("", "fp32"), ("--precision bf16", "bf16")):
        nsim(f"evaluate {run.path} --tasks 3 --device cpu {words}")
        assert (True, True) in passes
        assert ((False, True) in passes) == (precision == "bf16")
        (path,) = (run.path / "evaluations").glob("*.json")
        assert read_evaluation(path).summary["score_precision"] == precision


def test_lines_of_training_by_tasks_have_no_accuracy(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "draw_learning_curves", DRAW_CURVES)
    run = train(tmp_path, replace(BY_TASKS, select_on="none"))
    assert all("accuracy" not in line for line in read_lines(run.metrics))
    assert all(line["images_per_second"] > 0 for line in read_lines(run.metrics))
    assert run.classes == ("c0", "c1", "c2", "c3", "c4")
    assert (run.plots / "learning-curves.png").exists()


def test_training_by_tasks_is_the_textbooks(tmp_path):
    """The mean loss of two tasks a step, Adam, by hand."""
    recipe = replace(BY_TASKS, steps=3, drops=(), select_on="none", lr=0.01)
    run = train(tmp_path, recipe)
    tasks = training_tasks(recipe, preprocess=run.preprocess)
    method = RUNTIME.place_model(run.build()).train()
    optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        for task in (tasks.training_task(2 * step), tasks.training_task(2 * step + 1)):
            (method.loss(task) / 2).backward()
        optimizer.step()
    trained = load(run).state_dict()
    for name, value in method.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_tasks_of_a_step_keep_their_graphs_one_after_another(monkeypatch):
    method, graphs = ProtoNet(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())), []

    def loss(task):
        gc.collect()
        alive = sum(graph() is not None for graph in graphs)
        value = ProtoNet.loss(method, task)
        graphs.append(weakref.ref(value))
        assert alive == 0
        return value

    monkeypatch.setattr(method, "loss", loss)
    training_tasks(replace(BY_TASKS, meta_batch=4)).differentiate(method)
    assert len(graphs) == 4


def test_training_tasks_are_functions_of_their_number_and_the_seed():
    one, other = training_tasks(), training_tasks()
    one.training_task(3)
    assert torch.equal(one.training_task(7).support, other.training_task(7).support)
    assert not torch.equal(one.training_task(7).support, one.training_task(8).support)
    assert one.training_task(7).query.shape == (2 * 3, 1, 16, 16)
    whole = replace(BY_TASKS, crop=0, flip=False)
    first, second, third = (
        training_tasks(recipe).training_task(number).support
        for recipe, number in ((whole, 0), (whole, 1), (replace(whole, seed=1), 0))
    )
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)
    images = make_split().train
    known = Preprocess.fit_to_images(images)(images.pixels).flatten(1)
    assert all((row == known).all(1).any() for row in first.flatten(1))


def test_training_tasks_are_cropped_as_the_recipe_says():
    """All images are one, so that tasks differ in their windows alone."""
    images = make_split().train
    pixels = images.pixels[:1].repeat(len(images), 1, 1, 1) | 1
    same = Images(pixels, images.labels, images.classes)

    def support(**changes):
        tasks = training_tasks(replace(BY_TASKS, **changes), same, Preprocess.raw_values(1))
        return tasks.training_task(0).support

    assert not torch.equal(support(), support(seed=1))
    assert support().min() == 0
    assert support(padding="symmetric").min() > 0


@pytest.mark.parametrize(
    ("accuracy", "steps", "nothing"), [(0.34, 60, True), (0.5, 60, False), (0.34, 59, False)]
)
def test_a_run_near_chance_on_validation_classes_has_failed(accuracy, steps, nothing):
    recipe = replace(BY_TASKS, select_ways=3, queries=10, select_tasks=30, steps=steps, drops=())
    run = cast(FewShotRun, SimpleNamespace(recipe=recipe))
    summary = {"best_checkpoint": {"validation_accuracy": accuracy}}
    told = "learned nothing: 34.00 % where guessing has 33.33 %"
    assert (told in (FewShotTask.failure(run, summary) or "")) == nothing
    assert FewShotTask.failure(run, {}) is None


@pytest.mark.parametrize("method", ["proto", "fine-tuning"])
def test_it_learns(tmp_path, method):
    """The classes that it is trained on; on these, untrained networks are at 60 to 86 %."""
    recipe = replace(TINY, method=method, steps=60, drops=(), lr=0.01, width=0.25, crop=0)
    run = train(tmp_path, replace(recipe, flip=False))
    split = make_split()
    tasks = draw_tasks(split.train, TINY.task_sizes, 30, seed=0, data=split.digest, part="train")
    assert scored(run, "last", split.train, tasks).double().mean() > 0.92 * 6


def test_one_backbone_serves_several_methods(tmp_path):
    run = train(tmp_path)
    kinds = {name: load_method(run, "last", name) for name in ("fine-tuning", "static-nsn")}
    weights = [dict(method.backbone.named_parameters()) for method in kinds.values()]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])
    for name in ("proto", "baseline++"):
        with pytest.raises(RunError, match=f"was trained for fine-tuning, which is not {name}"):
            load_method(run, "last", name)


def test_baseline_plus_plus_has_a_cosine_head(tmp_path):
    run = train(tmp_path, replace(TINY, method="baseline++"))
    assert set(load(run)[-1].state_dict()) == {"weight", "gain"}
    assert isinstance(load_method(run, "last"), CosineFineTuning)


def test_retraining_takes_the_best_epochs():
    recipe = replace(TINY, steps=100, drops=(40, 90), select_on="val")
    again = retraining_recipe(recipe, 60, growth=1.25)
    assert (again.train_on, again.select_on) == ("train+val", "none")
    assert (again.steps, again.drops) == (75, (50,))
    assert retraining_recipe(replace(recipe, method="proto"), 60, growth=1.25).steps == 60


def test_faults_of_data_come_before_training(tmp_path, monkeypatch):
    few, learned = make_split(each=4), replace(TINY, method="maml", ways=4, queries=2)
    monkeypatch.setattr(data, "load_split", lambda *_, **__: few)
    for recipe, words in (
        (BY_TASKS, r"2 \+ 3 images for shots and queries, got 4 .* 'c0'"),
        (BY_NAMES, r"2 \+ 3 images for shots and queries, got 4 .* 'c5'"),
        (TINY, r"tiny, test: .* 2 \+ 3 images .*, got 4 .* 'c7'"),
        (replace(TINY, shots=3, queries=2), r"tiny, test: .* 3 \+ 2 images .*, got 4 .* 'c7'"),
        (learned, r"tiny, test: `ways` must be .* got 4 ways and 3 classes"),
        (replace(BY_NAMES, select_ways=3), r"`select_ways` must be at most .* classes, 2, got 3"),
    ):
        with pytest.raises(ValueError, match=words):
            train(tmp_path, recipe)
    assert not (tmp_path / "run").exists()
    for recipe in (replace(TINY, queries=2), replace(learned, ways=3)):
        check_task_sizes(few, recipe)


def test_kinds_of_runs_are_not_mixed_up(tmp_path):
    run = train(tmp_path)
    with pytest.raises(RunError, match="is a run of kind 'nsim fewshot train', not 'nsim train'"):
        read_run(run.path)
    assert read_run(run.path, FewShotRun) == run


test_bad_recipes = refusals(
    ({"method": "protonet"}, "`method` must be one of .*, got 'protonet'; nearest: proto"),
    ({"dataset": "cifar10"}, "`dataset` must be one of embedded, mini-imagenet"),
    ({"ways": 1}, "`ways` must be at least 2, got 1"),
    ({"select_ways": 1}, "`ways` must be at least 2, got 1"),
    ({"meta_batch": 0}, "`meta_batch` must be at least 1, got 0"),
    ({"select_tasks": 1}, "`select_tasks` must be at least 2, got 1"),
    ({"select_on": "val", "train_on": "train+val"}, '`select_on` "val" needs classes'),
    (
        {"method": "anil", "ways": 3, "select_on": "val"},
        "`select_ways` must be `ways`, 3, as anil learns the start of its classifier, got 5",
    ),
    call=lambda changes: FewShotRecipe(**changes),
)


def test_fields_of_classification_are_read_at_their_defaults_alone():
    """Runs and records of 0.2 hold them; few-shot learning neither has nor uses them."""
    former = {"validation": 0, "label_smoothing": 0.0, "penalty_measure": "l1", "compile": False}
    assert not former.keys() & recipe_to_json(TINY).keys()
    assert recipe_from_json(recipe_to_json(TINY) | former, FewShotRecipe) == TINY
    with pytest.raises(TypeError, match="label_smoothing"):
        recipe_from_json(recipe_to_json(TINY) | {"label_smoothing": 0.1}, FewShotRecipe)


# Runs that start from others.


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


# The command line.

FLAGS = "--dataset embedded --width 0.1 --steps 4 --batch-size 8 --precision fp32 --device cpu "
FLAGS += "--similarity none --crop 0 --select-on val --select-ways 2 --select-tasks 3 --shots 2 "
FLAGS += "--queries 3 --evaluate-every 2"
SIZES = "--ways 2 --shots 2 --queries 3 --tasks 5 --device cpu"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    with tiny_classes_world():
        assert cli.main(f"train fewshot-quickstart {FLAGS} --out {folder}".split()) == 0
    return folder


def test_the_command_line_evaluates_on_the_same_tasks(finished, nsim):
    for method in ("fine-tuning", "nearest-neighbour"):
        told = nsim(f"evaluate {finished} {SIZES} --method {method}").out
        assert f"{method}: " in told
        assert "2 ways, 2 shots, 3 queries a class, 5 tasks of test classes" in told
        assert "batch norm by running statistics" in told
    found = [json.loads(p.read_text()) for p in sorted((finished / "evaluations").glob("*.json"))]
    assert [one["method"] for one in found] == ["fine-tuning", "nearest-neighbour"]
    assert len({one["tasks"]["digest"] for one in found}) == 1
    assert found[0]["checkpoint"]["which"] == "best"


def test_a_learned_classifier_has_tasks_of_its_own_ways(tmp_path, nsim):
    run = train(tmp_path, replace(TINY, method="anil", steps=1, drops=()))
    told = nsim(f"evaluate {run.path} --tasks 3 --device cpu").out
    assert "anil: " in told
    assert "2 ways, 2 shots" in told


def test_queries_are_fewer_than_usual_where_classes_are_small(finished, monkeypatch, nsim):
    split = make_split()
    kept = [i for i, label in enumerate(split.test.labels.tolist()) if i % 12 < 9 + label]
    small = replace(split, test=split.test.subset(kept))
    task = replace(session.load_task(session.open_run(finished)), split=small)
    monkeypatch.setattr(session, "load_task", lambda *_: task)
    command = f"evaluate {finished} --tasks 5 --device cpu"
    for options, told in (
        ("", "2 shots, 7 queries a class"),
        ("--shots 8", "8 shots, 1 queries a class"),
        ("--queries 3", "2 shots, 3 queries a class"),
    ):
        assert told in nsim(f"{command} {options}").out
    told = nsim(f"{command} --shots 9", code=1).err
    assert "must have 9 + 1 images for shots and queries, got 9" in told


def test_an_evaluation_of_other_tasks_is_not_lost(finished, nsim):
    """A file whose numbers are those of the tasks and whose digest is not."""
    command = f"evaluate {finished} {SIZES} --task-seed 9"
    nsim(command)
    (path,) = (finished / "evaluations").glob("*-9.*.json")
    content = json.loads(path.read_text())
    content["tasks"]["digest"] = "0" * 64
    path.write_text(json.dumps(content))
    before = {p: p.read_bytes() for p in (finished / "evaluations").iterdir()}
    assert "for other tasks of the same number and seed" in nsim(command, code=1).err
    assert {p: p.read_bytes() for p in (finished / "evaluations").iterdir()} == before


def test_an_interrupted_evaluation_goes_on(finished, nsim, monkeypatch):
    monkeypatch.setattr(partial, "SAVE_SECONDS", 0.0)
    command = f"evaluate {finished} {SIZES} --method static-nsn"
    adapt, deadly, calls = StaticTuning.adapt, 4, []

    def counted(method, *task):
        method.tuning = Tuning(epochs=10, lr=1.0)
        calls.append(task)
        if len(calls) == deadly:
            raise Killed
        return adapt(method, *task)

    def outcome():
        (path,) = (finished / "evaluations").glob("static-nsn.*2s*.json")
        return read_evaluation(path).correct.tolist()

    monkeypatch.setattr(StaticTuning, "adapt", counted)
    with pytest.raises(Killed):
        nsim(command)
    nsim(f"{command} --shots 1")  # Takes nothing from the other.
    del calls[4:]
    nsim(command)
    assert len(calls) == 4 + 2
    gone_on = outcome()
    assert gone_on[:3] != gone_on[2::-1]  # So that a change of their order would show.
    nsim(command)
    assert len(calls) == 4 + 2 + 5
    assert outcome() == gone_on


def test_the_command_line_retrains(finished, tmp_path, nsim):
    out = tmp_path / "again"
    nsim(f"train --retrain {finished} --out {out}")
    best = json.loads((finished / "summary.json").read_text())["best_checkpoint"]["step"]
    again = read_run(out, FewShotRun)
    assert again.recipe.train_on == "train+val"
    assert again.recipe.steps == round(best * 84 / 60)
    told = nsim(f"train --retrain {out}", code=1).err
    assert "must be finished and have chosen a step" in told
    nsim(f"train --resume {out}")
    nsim(f"train --resume {out} --lr 1", code=2)
    told = " ".join(nsim(f"evaluate {out} {SIZES} --part val", code=1).err.split())
    assert "was trained on the validation classes; --part must be test" in told


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("train mini-cnn", 2, "no recipe is named 'mini-cnn'; did you mean"),
        ("evaluate {run} --method prot", 2, "`method` must be one of fine-tuning, "),
        ("evaluate {run} --tasks 999999999999999", 2, "`tasks` must be at most 1,000,000"),
        ("evaluate {run} --tasks 1", 2, "`tasks` must be at least 2, got 1"),
        ("evaluate {run} --shots 0", 2, "`shots` must be at least 1, got 0"),
        ("evaluate {run} --ways 9", 1, "`ways` must be at most the number of classes"),
        ("evaluate {run} --queries 99", 1, "every class must have 2 + 99 images"),
        ("record {run}", 1, "overrides"),
        ("train mini-leo", 1, "mini-leo expects --start RUN from mini-wrn28; training from"),
        ("record", 2, "needs at least one run folder"),
    ],
)
def test_wrong_command_lines(finished, nsim, line, code, message):
    told = nsim(line.format(run=finished), code=code)
    assert message in " ".join(told.err.split())


@pytest.mark.slow
def test_quickstart_learns(tmp_path, nsim, monkeypatch):
    """From the real images; above four in five of three classes that it never saw."""
    monkeypatch.setattr(data, "load_split", LOAD)
    run = session.train(RECIPES["fewshot-quickstart"], out=tmp_path / "run", device="cpu")
    assert isinstance(run.recipe.similarity.predictor, SphereNet)
    nsim(f"evaluate {run.path} --tasks 200")
    found = json.loads(next((run.path / "evaluations").glob("*.json")).read_text())
    assert found["summary"]["accuracy"] > 0.8

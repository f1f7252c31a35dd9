"""Every field of a recipe reaches what it names: none is read and forgotten."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from refusals import refusals
from tiny_images import TINY, make_dataset, tiny_world, train_tiny
from torch import nn

from neural_similarity.lab import data
from neural_similarity.lab.session import load, train
from neural_similarity.lab.train import Recipe, choose_runtime, fitting
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity.lab.train.journal import Journal, read_lines
from neural_similarity.lab.train.objective import cross_entropy
from neural_similarity.nn import Diagonal, Dynamic, Full, SphereConv2d, SphereNet, Static

pytestmark = pytest.mark.usefixtures("tiny")

# Fields without which the weights would end differently. `test_weights_depend_on` changes each.
WEIGHTS = {
    "inputs": "raw",
    "model": "cnn9_plus",
    "variant": "released",
    "width": 0.2,
    "similarity": Static(Diagonal()),
    "steps": 5,
    "lr": 0.05,
    "drops": (2,),
    "drop_factor": 0.5,
    "optimizer": "adam",
    "momentum": 0.5,
    "nesterov": True,
    "batch_size": 4,
    "weight_decay": 0.1,
    "decayed": "kernels",
    "label_smoothing": 0.2,
    "probability_floor": 0.1,
    "norm_momentum": 0.5,
    "norm_eps": 0.1,
    "crop": 2,
    "flip": False,
    "flips": "alternate",
    "padding": "symmetric",
    "precision": "bf16",
    "seed": 1,
    "validation": 8,
    "balanced": True,
}
# Fields with a test of their own below.
ELSEWHERE = {
    "draft",
    *("dataset", "image_size", "similarity_decay", "channels_last", "compile", "threads"),
    *("log_every", "evaluate_every", "checkpoint_seconds", "checkpoint_every", "schedule"),
    *("penalty", "penalty_measure", "orthogonality", "workers", "track", "sync_norms"),
}


def test_every_field_is_tested():
    assert set(WEIGHTS) | ELSEWHERE == {field.name for field in fields(Recipe)}
    assert not set(WEIGHTS) & ELSEWHERE


def weights_after_training(folder, **changes):
    state = load(train_tiny(folder, **changes)).state_dict()
    return torch.cat([tensor.flatten().float() for tensor in state.values()])


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    with tiny_world():
        return weights_after_training(tmp_path_factory.mktemp("usual"))


@pytest.mark.long
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_depend_on(usual, tmp_path, name):
    other = weights_after_training(tmp_path, **{name: WEIGHTS[name]})
    assert other.shape != usual.shape or not torch.equal(other, usual)


def optimizer_groups(run):
    return fitting.initial_state(run, choose_runtime("cpu")).optimizer.param_groups


def test_optimizer_has_the_recipes_numbers(tmp_path):
    numbers = {"momentum": 0.3, "lr": 0.4}
    decays = {"weight_decay": 0.02, "similarity_decay": 0.07}
    groups = optimizer_groups(
        train_tiny(tmp_path, similarity="static-diagonal", **numbers, **decays)
    )
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        "weights": 0.02,
        "similarities": 0.07,
    }
    assert all(group.items() >= (numbers | {"nesterov": False}).items() for group in groups)


def test_decay_of_kernels_alone_and_nesterovs_momentum(tmp_path):
    """Kernels and the classifier decay; gains, biases, normalisation and predictors do not."""
    dynamic = Dynamic(Diagonal(), predictor=SphereNet(batch_norm=True))
    changes = {"decayed": "kernels", "nesterov": True, "weight_decay": 0.02}
    run = train_tiny(tmp_path, similarity=dynamic, **changes)
    state = fitting.initial_state(run, choose_runtime("cpu"))
    groups = state.optimizer.param_groups
    decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in state.model.named_parameters():
        kernel = name.endswith("weight") and parameter.ndim > 1 and "similarity" not in name
        assert decay[parameter] == (0.02 if kernel else 0.0), name
    assert all(group["nesterov"] for group in groups)


def test_one_cycle_reaches_the_optimizer(tmp_path):
    cycle = {"schedule": "one-cycle", "drops": (), "steps": 10, "log_every": 1, "lr": 0.1}
    rates = [line["lr"] for line in read_lines(train_tiny(tmp_path, **cycle).metrics)]
    assert rates == pytest.approx([0.05, 0.1, *(0.1 * left / 8 for left in range(8, 0, -1))])


def test_adam_is_adam(tmp_path):
    changes = {"lr": 0.01, "weight_decay": 0.0, "steps": 1, "drops": (), "momentum": 0.8}
    run = train_tiny(tmp_path, optimizer="adam", **changes)
    optimizer = fitting.initial_state(run, choose_runtime("cpu")).optimizer
    assert type(optimizer) is torch.optim.Adam
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.999)}
    before, after = (dict(model.named_parameters()) for model in (run.build(), load(run)))
    moved = (after["classifier.weight"] - before["classifier.weight"]).detach().abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-2, atol=0)


def loss_of_one_step(folder, **changes):
    """The loss, and the run."""
    once = {"steps": 1, "drops": (), "log_every": 1}
    run = train_tiny(folder, **once, **changes)
    return read_lines(run.metrics)[0]["loss"], run


@pytest.mark.parametrize(
    ("measure", "start", "moves"), [("l1", 9, True), ("nuclear", 9, True), ("deviation", 0, False)]
)
def test_the_penalty_is_added_to_the_loss(tmp_path, measure, start, moves):
    """At M = I of nine layers: 9 each, with the gradient I, or nothing of its deviation."""
    plain = {"similarity": Static(Full()), "weight_decay": 0.0}
    loss, run = loss_of_one_step(tmp_path / "plain", **plain)
    plus = {"penalty": 0.5, "penalty_measure": measure}
    penalised, other = loss_of_one_step(tmp_path / "penalised", **plain, **plus)
    assert penalised - loss == pytest.approx(0.5 * 9 * start, abs=1e-5)
    state = load(other).state_dict()
    for name, value in load(run).state_dict().items():
        pulled = -0.1 * 0.5 * torch.eye(9).flatten() if name.endswith(".raw") and moves else 0
        torch.testing.assert_close(state[name], value + pulled, msg=name)


def test_hyperspherical_kernels_are_held_orthogonal_in_place_of_their_decay(tmp_path):
    plain = {"model": "spherenet9", "similarity": None, "weight_decay": 0.25}
    losses = []
    for orthogonality, spheres in ((0.0, {}), (0.5, {"spheres": 0.0})):
        held = {"orthogonality": orthogonality}
        loss, run = loss_of_one_step(tmp_path / str(orthogonality), **plain, **held)
        losses.append(loss)
        decays = {group["name"]: group["weight_decay"] for group in optimizer_groups(run)}
        assert decays == {"weights": 0.25} | spheres
    layers = [layer for layer in run.build().modules() if type(layer) is SphereConv2d]
    kernels = [layer.weight.flatten(1) for layer in layers]
    assert len(kernels) == 10
    by_hand = sum((w @ w.T - torch.eye(len(w))).square().sum().item() for w in kernels)
    assert losses[1] - losses[0] == pytest.approx(0.5 * by_hand, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_a_floor_by_hand(smoothing):
    logits, y = torch.randn(5, 4, dtype=torch.double), torch.tensor([0, 3, 1, 1, 2])
    targets = (1 - smoothing) * torch.eye(4).double()[y] + smoothing / 4
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    for floor in (0.0, 1e-4, 0.3):
        expected = -(targets * (p + floor).log()).sum(1).mean()
        torch.testing.assert_close(cross_entropy(logits, y, smoothing, floor), expected)


def test_norms_have_the_recipes_numbers_and_predictors_their_own_eps(tmp_path):
    predictor = SphereNet(hidden=4, batch_norm=True, batch_norm_eps=0.3)
    changes = {"norm_momentum": 0.25, "norm_eps": 0.125}
    similarity = Dynamic(Diagonal(), predictor=predictor)
    model = load(train_tiny(tmp_path, similarity=similarity, **changes))
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert {norm.momentum for norm in norms} == {0.25}
    assert [norm.eps for norm in norms].count(0.3) == 2 * 9
    assert [norm.eps for norm in norms].count(0.125) == 10


test_settings_that_do_not_go_together_are_refused = refusals(
    ({"orthogonality": 1.0}, "`orthogonality` applies to spherenet9, .* must be 0 for cnn9"),
    ({"model": "spherenet9"}, "`similarity` must be none for spherenet9, got Dynamic"),
    ({"dataset": "imagenet"}, "`crop` must be 0 for imagenet, whose windows .*, got 1"),
    ({"optimizer": "Adam"}, "`optimizer` must be one of sgd, adam, got 'Adam'; nearest: adam"),
    ({"inputs": "Raw"}, "`inputs` must be one of .*, raw, got 'Raw'; nearest: raw"),
    ({"precision": "fp16"}, "`precision` must be one of auto, bf16, fp32, got 'fp16'"),
    ({"norm_eps": 0.0}, "`norm_eps` must be above 0, got 0.0"),
    ({"flip": "no"}, "`flip` must be True or False, got 'no'"),
    ({"workers": -1}, "`workers` must not be negative, got -1"),
    ({"penalty": -1.0}, "`penalty` must not be negative, got -1.0"),
    ({"penalty": 0.1}, "`penalty` applies to static similarities .*, got 0.1 for Dynamic"),
    ({"penalty_measure": "l2"}, "`penalty_measure` must be one of .*, got 'l2'; nearest: l1"),
    call=lambda changes: replace(TINY, **changes),
)


def test_a_similarity_may_be_a_name():
    assert replace(TINY, similarity="static-full") == replace(TINY, similarity=Static(Full()))


def test_data_are_loaded_as_the_recipe_says(tmp_path, monkeypatch):
    asked = []

    def loading(*names, **options):
        asked.append((names, options))
        return make_dataset()

    monkeypatch.setattr(data, "load_dataset", loading)
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    recipe = replace(TINY, dataset="folder", image_size=8, workers=3, draft=False)
    run = train(recipe, out=tmp_path / "run", data_root="there", device="cpu")
    assert run.data_root == str(Path("there").absolute())
    options = {"root": "there", "fallback_size": 32, "image_size": 8, "workers": 3, "draft": False}
    assert asked == [(("folder",), options)]


@pytest.mark.parametrize("channels_last", [True, False])
def test_kernels_have_the_memory_format(tmp_path, channels_last):
    run = train_tiny(tmp_path, channels_last=channels_last)
    runtime = choose_runtime("cpu", "fp32", run.recipe.channels_last)
    kernels = [p for p in fitting.initial_state(run, runtime).model.parameters() if p.dim() == 4]
    wide = [kernel for kernel in kernels if kernel.shape[1] > 1]
    layouts = {kernel.is_contiguous(memory_format=torch.channels_last) for kernel in wide}
    assert layouts == {channels_last}


@pytest.mark.parametrize("compiles", [True, False])
def test_compile(tmp_path, monkeypatch, compiles):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    train_tiny(tmp_path, compile=compiles)
    assert len(compiled) == compiles


@pytest.mark.long
@pytest.mark.parametrize(("asked", "used"), [(0, 1), (2, 2)])
def test_threads(tmp_path, monkeypatch, asked, used):
    counts = set()
    monkeypatch.setattr(Journal, "show_step", lambda *_: counts.add(torch.get_num_threads()))
    run = train_tiny(tmp_path, threads=asked, steps=2, drops=())
    assert counts == {used}
    assert torch.get_num_threads() == 1
    assert json.loads((run.path / "environment.json").read_text())["threads"] == used


def test_lines_scores_and_checkpoints_come_every_so_many_steps(tmp_path):
    every = {"log_every": 3, "evaluate_every": 4, "checkpoint_every": 5, "validation": 8}
    run = train_tiny(tmp_path, steps=8, **every)
    lines = read_lines(run.metrics)
    assert [line["step"] for line in lines if "loss" in line] == [3, 6, 8]
    assert [line["step"] for line in lines if "validation_loss" in line] == [4, 8]
    names = [path.name for path in list_checkpoints(run.checkpoints)]
    assert names == ["step-00000005", "step-00000008"]

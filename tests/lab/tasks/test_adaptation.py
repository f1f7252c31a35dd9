"""Pretrained networks on other images, from the command line to the file of the adapter."""

import json
import re
import shutil
import sys
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from tiny_folders import write_classes
from tiny_images import CLASSES, TINY, make_dataset
from torch import nn

import neural_similarity as ns
from neural_similarity import visualize
from neural_similarity.choices import install_command
from neural_similarity.conversion import head_name
from neural_similarity.files import read_json
from neural_similarity.lab import data, session
from neural_similarity.lab.data import Dataset
from neural_similarity.lab.tasks import backbone
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe, AdaptationTask, adapt_network
from neural_similarity.lab.tasks.backbone import Backbone
from neural_similarity.lab.tasks.baselines import merge_baselines
from neural_similarity.lab.train import (
    Recipe,
    RunError,
    choose_runtime,
    distributed,
    fitting,
    pack_correct,
)
from neural_similarity.lab.train.checkpoint import newest_checkpoint, restore_state
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json

FEW = "--steps 2 --drops 1 --precision fp32 --device cpu"
RANDOM = "--pretrained False --image-size 32"
TO_ADAPT = install_command("adapt")
SHORT = {"steps": 2, "drops": (), "precision": "fp32"}
RECIPE = Recipe(dataset="embedded", width=0.1, **SHORT)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder of three classes, of images that are not square."""
    root = tmp_path_factory.mktemp("world")
    write_classes(root / "colours", ("red", "green", "blue"), each=20, size=(30, 24))
    return root


@pytest.fixture
def adapt(world, tmp_path, nsim):
    """Adapts by a command line into the folder run; what it prints."""

    def call(line, code=0, data=world / "colours"):
        return nsim(f"train adapt --data {data} --out {tmp_path / 'run'} {line} {FEW}", code=code)

    return call


def resnet20(folder, classes=3):
    """A file of weights, and the fields that it needs."""
    file = folder / "resnet20.safetensors"
    save_file(ns.models.resnet20(num_classes=classes, width=0.25).state_dict(), file)
    return {"backbone": str(file), "width": 0.25, "image_size": 16}


def words_of(fields):
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in fields.items())


def trained(folder, recipe=RECIPE):
    return session.train(recipe, out=folder, device="cpu")


def adapted(start, folder, **fields):
    """A run that goes on from another one, on the same images."""
    fields = {"backbone": str(start.path), "dataset": "embedded", **SHORT} | fields
    return trained(folder, AdaptationRecipe(**fields))


def same_weights(run, before):
    state = session.load(run).state_dict()
    return all(torch.equal(tensor, before[name]) for name, tensor in state.items())


@pytest.mark.long
def test_a_network_of_timm_on_a_folder_of_classes(world, tmp_path, adapt, nsim):
    run = tmp_path / "run"
    layers = "--where layer4.* --similarity static-diagonal"
    told = adapt(f"--backbone timm:resnet18 {RANDOM} {layers}")
    assert "48 training, 12 test images, 3 classes: blue, green, red\n" in told.err
    assert "timm:resnet18 with a new classifier of 3 classes, sha256 " in told.err
    trained = 3 * 513 + 4 * 9
    assert f"{trained:,} of 11,178,087 parameters train" in told.err
    size = (run / "adapter.safetensors").stat().st_size
    assert size < 10_000
    file = f"{run}/adapter.safetensors, {size / 1000:.1f} kB"
    assert f"{trained:,} parameters trained, in {file}\n" in told.out
    accuracy = read_json(run / "summary.json")["test_accuracy"]
    assert f"accuracy {100 * accuracy:.2f} %" in nsim(f"evaluate {run} --device cpu").out
    image = world / "colours" / "red" / "0.png"
    assert nsim(f"predict {run} {image}").out.startswith(f"{image}: ")
    run.rename(tmp_path / "first")
    told = adapt(f"--backbone {tmp_path / 'first'}", code=1).err
    assert "cannot be a backbone: it is timm:resnet18 adapted" in told


@pytest.mark.long
@pytest.mark.parametrize("train", ["M", "head", "M+norm", "all", "M+all"])
def test_the_adapter_on_its_backbone_is_the_network(tmp_path, adapt, train):
    fields, run = resnet20(tmp_path), tmp_path / "run"
    backbone = ns.models.resnet20(num_classes=3, width=0.25)
    backbone.load_state_dict(load_file(fields["backbone"]))
    adapt(f"{words_of(fields)} --train {train} --lr 0.02")
    network, x = session.load(run), torch.randn(2, 3, 16, 16)
    loaded = ns.load_adapter(backbone, run / "adapter.safetensors")
    assert ns.max_difference(loaded, network, x) == 0
    assert ns.max_difference(backbone, network, x) > 1e-5
    state, after = backbone.state_dict(), network.state_dict()
    moved = {name for name in state if not torch.equal(after[name], state[name])}
    assert any("similarity" in name for name in after) == ("M" in train)
    assert any("running" in name for name in moved) == ("all" in train)
    part = {"M": "-", "head": "linear", "M+norm": "bn|norm"}.get(train, "")
    assert all(re.search(part, name) for name in moved)


WEIGHTS = {f"{i}.{name}" for i in (0, 1, 3) for name in ("weight", "bias")}


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.LayerNorm(6), nn.RMSNorm(6)], ids=type)
@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("head", {"3.weight", "3.bias"}),
        ("norm", {"1.weight", "1.bias"}),
        ("bias", {"0.bias", "1.bias", "3.bias"}),
        ("all", WEIGHTS),
        ("M", {"0.similarity.raw"}),
        ("M+head", {"0.similarity.raw", "3.weight", "3.bias"}),
        ("norm+M", {"0.similarity.raw", "1.weight", "1.bias"}),
        ("M+all", WEIGHTS | {"0.similarity.raw"}),
        ("M+baseline", {"0.similarity.raw", "0.scale", "0.shift"}),
        ("M+all+baseline", WEIGHTS | {"0.similarity.raw", "0.scale", "0.shift"}),
    ],
)
def test_there_is_an_m_exactly_where_train_names_it(train, expected, norm):
    """What trains together folds into the layers of the backbone."""
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), deepcopy(norm), nn.Flatten(), nn.Linear(144, 2))
    recipe = AdaptationRecipe(train=train, baseline="ssf" if "baseline" in train else "none")
    assert recipe_from_json(recipe_to_json(recipe), AdaptationRecipe) == recipe
    network, x = adapt_network(deepcopy(plain), recipe).double(), torch.randn(2, 3, 8, 8).double()
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    assert trained.keys() == expected - ({"1.bias"} if isinstance(norm, nn.RMSNorm) else set())
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn_like(parameter))
    folded = ns.fold(merge_baselines(network))
    assert folded.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(folded.eval()(x), network.eval()(x))


@pytest.mark.usefixtures("tiny")
def test_a_new_head_has_a_rate_of_its_own(tmp_path):
    """One update moves every number by its gradient times the rate of its part."""
    start, networks = trained(tmp_path / "start"), []
    for rate in (None, 0.5):
        fields = {"classifier": "new", "train": "M+head", "steps": 1, "lr": 0.125, "head_lr": rate}
        networks.append(session.load(adapted(start, tmp_path / f"{rate}", **fields)).state_dict())
    start = session.open_run(tmp_path / "None").begin_network().state_dict()
    for name, value in start.items():
        usual, other = (network[name] - value for network in networks)
        scale = 4 if name.startswith("classifier") else 1
        torch.testing.assert_close(other, usual * scale, rtol=1e-4, atol=1e-6)


TRAINED = "head", "M", "norm", "M+bias", "all", "M+lora+head", "M+conv-adapter"


@pytest.mark.parametrize(
    ("train", "accuracy", "failed"),
    [*((train, 0.4, True) for train in TRAINED), ("all", 0.9, False), ("nothing", 0.4, False)],
)
def test_a_run_near_chance_has_failed(train, accuracy, failed):
    """Whatever trains; where nothing trains, nothing failed."""
    recipe = AdaptationRecipe(train=train, steps=60, drops=())
    run = SimpleNamespace(recipe=recipe, classes=("red", "green", "blue"))
    correct = pack_correct(torch.zeros(12) > 0)
    summary = {"test_correct": correct, "test_balanced_accuracy": accuracy}
    told = "the network has learned nothing: 40.00 % where guessing has 33.33 %; try a lower --lr"
    assert (told in (AdaptationTask.failure(run, summary) or "")) == failed


def test_a_run_that_failed_exits_with_1(tmp_path, monkeypatch, adapt):
    monkeypatch.setattr(AdaptationTask, "failure", lambda *_: "nothing is learned")
    words = words_of(resnet20(tmp_path, classes=2))
    assert "nsim: nothing is learned\n" in adapt(f"{words} --train head --lr 0.01", code=1).err


@pytest.mark.long
def test_the_default_with_a_new_head_is_never_below_the_probe(tmp_path):
    """docs/evidence/new-heads.md, with a small network: as good as the best of five rates, too."""
    recipe = replace(RECIPE, similarity=None, width=0.25, steps=200, lr=0.05, crop=1, flip=False)
    start = trained(tmp_path / "start", recipe)
    fields = {"classifier": "new", "per_class": 20, "steps": 100, "drops": (70,)}
    fields |= {"crop": 1, "flip": False, "draft": True}

    def score(train, lr):
        with suppress(RunError) if lr else nullcontext():  # Rates may diverge, the default not.
            run = adapted(start, tmp_path / f"{train}-{lr}", **fields, train=train, lr=lr)
            return read_json(run.summary)["test_accuracy"]
        return 0.0

    probe, behind = score("head", 0.1), []
    for train in ("M+head", "norm+head", "all", "M+norm+head", "M+all"):
        accuracy = score(train, 0.0)
        assert accuracy > probe - 0.02, train
        behind.append(max(score(train, lr) for lr in (0.003, 0.01, 0.03, 0.1, 0.3)) - accuracy)
    assert sorted(behind)[3] < 0.02, behind


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("norm", ["eval", "train"])
def test_nothing_trains_and_running_statistics_move_where_they_may(tmp_path, norm):
    start = trained(tmp_path / "start")
    before = session.load(start).state_dict()
    run = adapted(start, tmp_path / "run", train="nothing", similarity=None, norm=norm)
    moved = {n for n, t in session.load(run).state_dict().items() if not torch.equal(t, before[n])}
    kinds = {name.rpartition(".")[2] for name in moved}
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert kinds == (statistics if norm == "train" else set())
    assert read_json(run.summary)["trained"] == 0
    assert (run.path / "adapter.safetensors").exists() == (norm == "train")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "fields", [{"train": "M"}, {"train": "M+all", "classifier": "new"}], ids=["kept", "new"]
)
def test_a_run_is_a_backbone_and_the_adaptation_needs_it_no_more(tmp_path, fields):
    """Of grey images; resumed and loaded after the run has gone, at the default rates."""
    settings = {"steps": 4, "drops": (), "checkpoint_every": 2}
    run = adapted(trained(tmp_path / "start"), tmp_path / "run", **settings, **fields)
    facts = read_json(run.path / "environment.json")["backbone"]
    assert facts["head"] == fields.get("classifier", "kept")
    assert (facts["trained"] == 9 * 81) == (facts["head"] == "kept")
    assert len(facts["digest"]) == 64
    before = session.load(run).state_dict()
    (tmp_path / "start").rename(tmp_path / "gone")
    for path in (run.summary, run.path / "adapter.safetensors"):
        path.unlink()
    shutil.rmtree(run.checkpoints / "step-00000004")
    session.resume(run.path, device="cpu")
    assert same_weights(run.path, before)
    assert (run.path / "adapter.safetensors").exists()


@pytest.mark.usefixtures("tiny")
def test_a_backbone_with_attention_gets_the_similarity(tmp_path):
    """Attention is a global similarity of the network's own, not what the recipe asks for."""
    recipe = replace(RECIPE, model="cnn9_wide_attention", width=0.05)
    run = adapted(trained(tmp_path / "start", recipe), tmp_path / "run", train="M")
    learned = [n for n in session.load(run).state_dict() if n.endswith("similarity.raw")]
    assert len(learned) == 9


@pytest.mark.usefixtures("tiny")
def test_a_similarity_in_other_layers_is_folded(tmp_path):
    start = trained(tmp_path / "start", replace(RECIPE, similarity="static-full"))
    fields = {"backbone": str(start.path), "dataset": "embedded", "train": "M", **SHORT}
    sizes = {"image_size": 8, "in_channels": 1}
    run = AdaptationTask.load(AdaptationRecipe(where="conv1*", **fields), ".").recipe
    model, kept, converted = run.pretrained_source.load_pretrained(run, start.classes, **sizes)
    assert kept
    assert not converted
    assert ns.max_difference(model.eval(), session.load(start), torch.randn(2, 1, 8, 8)) < 1e-5
    run = replace(run, where=None)
    assert run.pretrained_source.load_pretrained(run, start.classes, **sizes).converted


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("fields", [{}, {"channels": 1, "image_size": 8}])
def test_an_empty_word_is_no_run_of_the_working_directory(tmp_path, monkeypatch, fields):
    monkeypatch.chdir(trained(tmp_path / "start").path)
    recipe = AdaptationRecipe(dataset="embedded", **SHORT, **fields)
    with pytest.raises(ValueError, match="`backbone` must be timm:NAME"):
        trained(tmp_path / "run", recipe)


def test_torchvision_and_grey_images(tmp_path):
    settings = {"steps": 1, "drops": (), "precision": "fp32", "batch_size": 4}
    settings |= {"pretrained": False, "dataset": "embedded"}
    recipe = AdaptationRecipe(backbone="torchvision:mobilenet_v3_small", **settings)
    weights = tmp_path / "weights.pth"
    source = torchvision.models.mobilenet_v3_small()
    torch.save({"state_dict": source.state_dict()}, weights)
    task = AdaptationTask.load(AdaptationRecipe(**vars(recipe) | {"weights": str(weights)}), ".")
    assert task.images.shape == (3, 28, 28)
    assert task.preprocess().mean == (0.485, 0.456, 0.406)
    model, kept, _ = task.recipe.pretrained_source.load_pretrained(task.recipe, task.images.classes)
    assert not kept
    assert model.classifier[-1].out_features == 10
    assert torch.equal(model.features[0][0].weight, source.features[0][0].weight)


def test_given_channels_leave_the_size_of_the_backbone(world):
    recipe = AdaptationRecipe(backbone="timm:resnet18", pretrained=False, channels=3)
    assert AdaptationTask.load(recipe, world / "colours").images.shape == (3, 224, 224)


def test_a_new_classifier_of_timm_starts_with_small_logits():
    """timm's own of three classes starts at up to 0.58, and the first updates ruin what is kept."""
    recipe = AdaptationRecipe(backbone="timm:efficientnet_lite0", pretrained=False)
    head = recipe.pretrained_source.plain_network(recipe, 3).classifier
    assert head.weight.abs().max() <= head.in_features**-0.5


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (1, "", "`backbone` must be timm:NAME, torchvision:NAME, a file of weights"),
        (1, "tim:resnet18", "`backbone` must be timm:NAME, torchvision:NAME"),
        (1, "timm:resnet81", "got 'resnet81'; nearest: resnet18"),
        (1, "timm:resnet18.a1_in1q", "got 'resnet18.a1_in1q'; nearest: resnet18.a1_in1k"),
        (1, "torchvision:resnet19", "got 'resnet19'; nearest: resnet1"),
        (2, "torchvision:resnet18 --train heads", "be nothing, or some of M"),
        (2, "timm:resnet18 --train nothing+M", "be nothing, or some of M"),
        (
            2,
            "timm:resnet18 --train head --similarity static-diagonal",
            "`train` must name M for the similarity static-diagonal, got 'head'",
        ),
        (1, "timm:resnet18 --model resnet56", "`model` must be left out for"),
        (1, "torchvision:resnet18 --width 2", "`width` must be left out for"),
        (2, "timm:resnet18 --head-lr 0", "`head_lr` must be above 0, or None"),
        (1, f"timm:resnet18 {RANDOM} --where layer5.*", "layer5"),
        (1, f"timm:vit_tiny_patch16_224 {RANDOM} --where x", "does not take"),
        (1, f"timm:resnet18 {RANDOM} --weights WORLD/colours/red/0.png", "must hold"),
        (
            1,
            f"torchvision:squeezenet1_1 {RANDOM} --train M+norm",
            "got 'norm' for a network without gains and shifts",
        ),
        (1, f"timm:levit_128s {RANDOM}", "`backbone` must have one classifier, got"),
        pytest.param(
            1,
            f"torchvision:googlenet {RANDOM}",
            "must return one tensor in training, too, got GoogLeNetOutputs",
            marks=pytest.mark.filterwarnings("ignore:The default weight"),
        ),
        (1, "WORLD/adapter", "`backbone` must be"),
        (1, "WORLD/colours", "is not a run folder"),
    ],
)
def test_what_cannot_be_adapted_leaves_no_folder(world, tmp_path, adapt, code, words, message):
    line = words.replace("WORLD", str(world))
    told = adapt(f"--backbone {line}" if line else "", code=code).err
    assert message in " ".join(told.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "module", "message"),
    [
        ("--data 1.5", None, "1.5 must be a folder of class folders, got none"),
        ("--track wandb", "wandb", "--track wandb needs wandb: pip install"),
        (
            "--train baseline --baseline oft",
            "lycoris",
            f"diag-OFT needs lycoris: {install_command('baselines')}",
        ),
        *(
            (f"--backbone {kind}:resnet18", kind, f"{kind}:resnet18 needs {kind}: {TO_ADAPT}")
            for kind in ("timm", "torchvision")
        ),
    ],
)
def test_what_takes_no_time_is_told_first(adapt, monkeypatch, words, module, message):
    """Before timm is imported, and before images are read."""
    monkeypatch.setattr(backbone, "_library_of", lambda _: pytest.fail("timm is imported"))
    monkeypatch.setitem(sys.modules, module or "no module", None)
    line = f"--backbone timm:resnet18 --similarity none --train head {words}"
    assert message in adapt(line, code=1).err


def test_weights_that_cannot_be_downloaded(adapt, monkeypatch):
    def fail(*_, pretrained=False, **__):
        if pretrained:
            raise OSError("no network")
        return MODEL

    MODEL = timm.create_model("resnet18", num_classes=3)
    monkeypatch.setattr(timm, "create_model", fail)
    told = adapt("--backbone timm:resnet18 --image-size 32", code=1).err
    assert "cannot be downloaded: no network; give a file with --weights" in told


@pytest.mark.parametrize(
    ("word", "library", "name"),
    [
        ("timm:test_resnet", timm, "create_model"),
        ("torchvision:squeezenet1_1", torchvision.models, "get_model"),
    ],
)
def test_all_but_the_classifier_comes_with_the_name(word, library, name, monkeypatch):
    make = getattr(library, name)

    def downloaded(*args, pretrained=False, weights=None, **options):
        network = make(*args, **options)
        if pretrained or weights:
            for parameter in network.parameters():
                nn.init.constant_(parameter, 0.25)
        return network

    monkeypatch.setattr(library, name, downloaded)
    model, kept, _ = Backbone(word).load_pretrained(RECIPE, ("red", "green", "blue"))
    assert not kept
    head = head_name(model)
    for key, parameter in model.named_parameters():
        assert (parameter == 0.25).all() != key.startswith(f"{head}."), key


@pytest.mark.parametrize(
    ("words", "better"),
    [("--train M", "M+head"), ("--train nothing --similarity none", "head")],
)
def test_a_new_classifier_that_stays_random_is_told(tmp_path, adapt, words, better):
    """With a `train` that the command takes."""
    told = adapt(f"--backbone timm:test_resnet {RANDOM} {words}").err
    assert f"the classifier is new, and stays random; --train {better}\n" in told
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["command"] == "nsim train adapt"


def test_few_images_of_each_class_drawn_by_the_seed(world, tmp_path):
    fields = resnet20(tmp_path)

    def few(per_class, seed=0):
        recipe = AdaptationRecipe(**fields, per_class=per_class, seed=seed)
        task = AdaptationTask.load(recipe, world / "colours")
        digests.add(task.digest)
        return task.dataset.train

    digests = set()
    assert few(5).labels.bincount().tolist() == [5, 5, 5]
    assert torch.equal(few(5).pixels, few(5).pixels)
    assert not torch.equal(few(5).pixels, few(5, seed=1).pixels)
    assert len(few(16)) == len(few(100)) == len(few(None)) == 48
    assert len(digests) == 1  # so that a table compares its seeds
    with pytest.raises(ValueError, match="`per_class` must be at least 1, got 0"):
        few(0)


@pytest.mark.parametrize(
    ("classifier", "train", "head"),
    [
        ("auto", "M", "kept"),
        ("auto", "M+norm", "kept"),
        ("auto", "M+head", "new"),
        ("auto", "all", "new"),
        ("kept", "M+head", "kept"),
        ("new", "M", "new"),
    ],
)
def test_whose_classifier(world, tmp_path, classifier, train, head):
    """Nothing tells the names of the classes of a file."""
    recipe = AdaptationRecipe(classifier=classifier, train=train, **resnet20(tmp_path))
    task = AdaptationTask.load(recipe, world / "colours")
    assert task.check_start()["backbone"]["head"] == head
    resnet20(tmp_path, classes=4)
    if classifier == "kept":
        with pytest.raises(RunError, match=r"the classifier of .* does not have 3 classes"):
            task.check_start()
    else:
        assert task.check_start()["backbone"]["head"] == "new"


@pytest.mark.parametrize("rate", ["0", "0.003"])
def test_one_class_is_refused_whatever_the_rate(world, tmp_path, adapt, rate):
    shutil.copytree(world / "colours" / "red", tmp_path / "colours" / "red")
    line = f"{words_of(resnet20(tmp_path, classes=2))} --lr {rate}"
    told = adapt(line, code=1, data=tmp_path / "colours").err
    assert "there must be at least two classes, got ('red',)" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("names", "head"), [(CLASSES, "kept"), (("a", "b", "c", "d"), "new")])
def test_auto_keeps_the_classifier_of_the_same_names_alone(tmp_path, monkeypatch, names, head):
    """As many classes are not enough where a run tells their names."""
    run, images = trained(tmp_path / "run"), make_dataset()
    parts = [replace(part, classes=names) for part in (images.train, images.test)]
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: Dataset("tiny", *parts))
    for train in ("M", "M+head"):
        recipe = AdaptationRecipe(backbone=str(run.path), dataset="embedded", train=train)
        assert AdaptationTask.load(recipe, tmp_path).check_start()["backbone"]["head"] == head


class NoTensor:
    """What `torch.load` would have to execute."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("FILE --model resnet56", "FILE do not fit: "),
        (f"timm:resnet18 {RANDOM} --weights FILE", "FILE do not fit: "),
        ("OBJECT", "OBJECT must hold weights, but cannot be read: it must hold"),
        ("CUT", "CUT must hold weights, but cannot be read: "),
        ("FILE --channels 1", "`channels` must be 3, as FILE takes, got 1"),
        (f"timm:resnet18 {RANDOM} --channels 1", "`channels` must be 3, as"),
    ],
)
def test_what_does_not_fit_is_told_at_once(tmp_path, monkeypatch, adapt, words, message):
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: pytest.fail("images are decoded"))
    places = {"FILE": resnet20(tmp_path)["backbone"], "OBJECT": str(tmp_path / "object.pt")}
    torch.save(NoTensor(), places["OBJECT"])
    places["CUT"] = str(tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    line, message = (
        re.sub("FILE|OBJECT|CUT", lambda word: places[word[0]], text) for text in (words, message)
    )
    width = "" if "timm:resnet18" in words else "--width 0.25"
    told = adapt(f"--backbone {line} {width}", code=1).err
    assert message in told
    assert "weights_only" not in told
    assert told.count("\n") == 1


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("similarity", ["static-full", TINY.similarity], ids=["static", "dynamic"])
def test_the_m_of_a_run_trains_on_without_a_word(tmp_path, caplog, capsys, similarity):
    """Another M cannot take the place of a dynamic one, which cannot be folded."""
    start = trained(tmp_path / "start", replace(RECIPE, similarity=similarity))
    run = adapted(start, tmp_path / "run", similarity=similarity, inputs="imagenet")
    assert "changed" not in caplog.text
    assert run.preprocess == start.preprocess
    told = f"pixels are normalised as for {start.path}; --inputs is for files of weights\n"
    assert told in capsys.readouterr().err
    if similarity != "static-full":
        with pytest.raises(RunError, match="go on with --similarity 'Dynamic"):
            adapted(start, tmp_path / "other", similarity=ns.Static(ns.Full()))


def test_batches_are_no_larger_than_the_few_images(adapt):
    told = adapt(f"--backbone timm:test_resnet {RANDOM} --per-class 5 --lr 0.01").err
    assert "batches have 15 images, as many as there are, not 32\n" in told


@pytest.mark.usefixtures("tiny")
def test_of_several_processes_one_writes_pictures_and_adapter(tmp_path, monkeypatch):
    run = adapted(trained(tmp_path / "start"), tmp_path / "run", train="M")
    (run.path / "adapter.safetensors").unlink()
    runtime = choose_runtime("cpu", "fp32")
    state = fitting.initial_state(run, runtime)
    restore_state(newest_checkpoint(run.checkpoints), state)
    monkeypatch.setattr(distributed, "is_first", lambda: False)
    monkeypatch.setattr(visualize, "draw", lambda *_: pytest.fail("it draws"))
    told = session.load_task(run).finish_run(run, state, runtime)
    assert told["test_accuracy"] == read_json(run.summary)["test_accuracy"]
    assert not (run.path / "adapter.safetensors").exists()

"""Settings from files, small sets, JSON for programs, TensorBoard, completion."""

import json
import re
import sys
from dataclasses import replace
from unittest.mock import Mock, call

import pytest
import torch
from PIL import Image
from tiny_folders import write_folders
from tiny_images import TINY, make_dataset, train_tiny

from neural_similarity.choices import install_command
from neural_similarity.lab import data, session
from neural_similarity.lab.data import load_split
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks import classification
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train import read_run
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.scoring import score_logits

AUGMENTED = (
    "training images: moved by up to 4 pixels (--crop), half of them mirrored "
    "(--flip False for signs and text)"
)
PERCENT = r"[\d.]+ %"
SMALL = "--width 0.1 --batch-size 8 --device cpu --precision fp32"


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("words", ["", "--seed 3 --lr 0.5"])
def test_the_config_of_a_run_goes_back_in(tmp_path, nsim, words):
    recipe = replace(TINY, similarity=None, steps=8, drops=(5,))
    run = session.train(recipe, name="mine", budget=0.5, out=tmp_path / "run", device="cpu")
    out, place = tmp_path / "again", run.path if words else run.path / "config.json"
    nsim(f"train --config {place} --out {out} --device cpu {words}")
    again = read_run(out)
    assert (again.name, again.budget, again.data_root) == ("mine", 0.5, run.data_root)
    changes = {"seed": 3, "lr": 0.5} if words else {}
    assert again.recipe == replace(run.recipe, **changes)
    if not words:
        before = session.load(run).state_dict()
        assert all(torch.equal(t, before[n]) for n, t in session.load(again).state_dict().items())


@pytest.mark.usefixtures("tiny")
def test_a_config_by_hand_names_a_recipe_and_what_differs(tmp_path, nsim):
    file = tmp_path / "mine.json"
    fields = {"width": 0.1, "steps": 2, "drops": [], "similarity": "none"}
    file.write_text(json.dumps({"recipe": "quickstart", "fields": fields}))
    nsim(f"train --config={file} --out", tmp_path / "run")
    recipe = replace(RECIPES["quickstart"], **fields | {"drops": (), "similarity": None})
    assert read_run(tmp_path / "run").recipe == recipe


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        ("no.json", "", "must name a run's settings, got no.json: no.json is missing"),
        (".", "", "got config.json: config.json is missing"),
        ("BAD", '{"command": "nsim sing"}', "its command 'nsim sing' trains no runs"),
        ("BAD", "{", "BAD must be JSON, got Expecting property name"),
        ("BAD", "{}", "got BAD: it lacks 'recipe'"),
        ("BAD", "[]", "a value has another type than it must have: 'list' object"),
        ("BAD", '{"recipe": "x", "fields": {"steps": 0}}', "`steps` must be above 0"),
        ("BAD --budget 0.5", "", "--budget cannot be given with --config"),
    ],
)
def test_a_config_that_is_none(tmp_path, monkeypatch, nsim, words, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BAD").write_text(content)
    told = nsim(f"train --config {words}", code=2).err
    assert message in told
    assert "Error(" not in told


def test_a_folder_of_few_images_of_several_sizes(tmp_path, monkeypatch, nsim, caplog):
    """Sizes, batch and drops adapt, with a notice of each; the run says so and goes back in."""
    monkeypatch.chdir(tmp_path)
    names = ["ant", "bee", "cat"]
    write_folders(tmp_path / "small", {"train": names}, each=3)
    write_folders(tmp_path / "photos", {"train": names}, each=16)
    for index, name in enumerate(names):
        for file in (tmp_path / "small" / "train" / name).iterdir():
            file.rename(tmp_path / "photos" / "train" / name / f"s{file.name}")
        wide = tmp_path / "photos" / "train" / name / "0.png"
        if index == 0:
            Image.open(wide).resize((9, 7)).save(wide)
    words = "--dataset folder --data photos/train --out run --steps 3 --width 0.1 --device cpu"
    told = nsim(f"train cifar10-cnn {words}").err
    told += "".join(f"{text}\n" for text in caplog.messages)
    caplog.clear()
    for line in (
        "the learning rate drops at (2,), in proportion (--drops)",
        "images of several sizes, or not square, are resized to 32x32 (--image-size)",
        "batches have 48 images, as many as there are, not 128",
        "48 training, 9 test images, 3 classes: ant, bee, cat",
        AUGMENTED,
    ):
        assert f"{line}\n" in told
    recipe = read_run("run").recipe
    assert (recipe.image_size, recipe.batch_size, recipe.drops) == (32, 48, (2,))
    by_class = nsim("evaluate run --device cpu").out.splitlines()[1]
    pattern = rf"balanced accuracy {PERCENT}, by class(,? (ant|bee|cat) {PERCENT}){{3}}"
    assert re.fullmatch(pattern, by_class)
    scores = json.loads(nsim("evaluate run --json --device cpu").out)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert scores["scores"]["test_correct"] == summary["test_correct"]
    assert not caplog.messages


@pytest.mark.usefixtures("tiny")
def test_a_network_with_one_answer_is_warned_of(tmp_path, monkeypatch, capsys, nsim):
    """All test images are taken for one class, in training and in evaluation."""
    logits = torch.eye(4)[[0] * 32]
    scores = score_logits(logits, make_dataset().test.labels)
    monkeypatch.setattr(classification, "evaluate_model", lambda *_: scores)
    run = str(train_tiny(tmp_path, balanced=True, steps=2, drops=()).path)
    line = "warning: 32 of 32 test images are taken for up: "
    assert line in capsys.readouterr().err
    told = nsim(f"evaluate {run} --json --device cpu")
    found = json.loads(told.out)["scores"]
    assert line in told.err
    assert found["test_class_accuracies"] == {"up": 1, "down": 0, "left": 0, "right": 0}
    assert found["test_balanced_accuracy"] == 1 / 4
    nsim(f"report {run} --out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td>accuracy by class</td><td>down 0.0 %, left 0.0 %, right 0.0 %, up 100.0 %" in page


def test_folder_is_the_word_for_few_shot_learning_too(tmp_path):
    write_folders(tmp_path)
    splits = [load_split(name, tmp_path, image_size=6) for name in ("folder", "classes")]
    assert splits[0].digest == splits[1].digest
    assert FewShotRecipe(dataset="classes") == FewShotRecipe(dataset="folder")


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("recipes", {"family", "name", "data", "steps"}),
        ("models convnet4", {"name", "similarity", "parameters", "macs"}),
    ],
)
def test_json_for_programs(line, keys, nsim):
    rows = json.loads(nsim(f"{line} --json").out)
    assert rows
    assert all(keys <= row.keys() for row in rows)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("similarity", [TINY.similarity, None])
def test_compiling_a_dynamic_network_is_warned_of(similarity, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.compile", lambda network: network)
    train_tiny(tmp_path, compile=True, similarity=similarity)
    warned = "--compile slows a dynamic similarity down on a CPU" in capsys.readouterr().err
    assert warned == (similarity is not None)


@pytest.mark.usefixtures("tiny")
def test_tensorboard_has_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_tiny(tmp_path, track="tensorboard", validation=8, evaluate_every=3)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    for name in ("loss", "accuracy", "validation_accuracy"):
        lines = {r["step"]: r[name] for r in read_lines(run.metrics) if name in r}
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == pytest.approx(lines)


@pytest.mark.parametrize("tool", ["wandb", "mlflow"])
@pytest.mark.usefixtures("tiny")
def test_other_trackers_get_the_settings_and_the_metrics(tool, tmp_path, monkeypatch):
    tracker = Mock()
    monkeypatch.setitem(sys.modules, tool, tracker)
    run = train_tiny(tmp_path, track=tool, validation=8, evaluate_every=3)
    name, fields = run.path.name, json.loads((run.path / "config.json").read_text())["fields"]
    if tool == "wandb":
        begun = [call.init(name=name, config=fields, reinit="finish_previous")]
        log = tracker.init.return_value.log
    else:
        begun = [call.end_run(), call.start_run(run_name=name), call.log_params(fields)]
        log = tracker.log_metrics
    assert tracker.mock_calls[: len(begun)] == begun
    told = [numbers | {"step": step} for numbers, step in (made.args for made in log.mock_calls)]
    assert told == read_lines(run.metrics)


@pytest.mark.parametrize(
    ("tool", "module", "extra"),
    [
        ("tensorboard", "torch.utils.tensorboard", "track"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow"),
    ],
)
def test_without_its_tracker_no_run_begins(tool, module, extra, tmp_path, monkeypatch, nsim):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(data, "load_dataset", lambda *_, **__: pytest.fail("images are read"))
    told = nsim(f"train --track {tool} --steps 2 {SMALL} --out {tmp_path / 'run'}", code=1).err
    assert install_command(extra) in told
    assert not (tmp_path / "run").exists()

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_images import CLASSES, DRAW, LOAD, TINY, make_dataset, tiny_world
from tiny_images import tiny as tiny

import neural_similarity as ns
from neural_similarity import models, visualize
from neural_similarity.choices import install_command
from neural_similarity.lab import cli, data, session
from neural_similarity.lab import train as training
from neural_similarity.lab.cli import runs
from neural_similarity.lab.recipes import FAMILIES, RECIPES
from neural_similarity.lab.session import load, train
from neural_similarity.lab.train import read_run
from neural_similarity.lab.train.recipe import scale_recipe
from neural_similarity.nn import SIMILARITIES, Diagonal, Static

pytestmark = pytest.mark.usefixtures("tiny")
SMALL = ("--width", "0.1", "--steps", "4", "--drops", "2", "--batch-size", "8", "--device", "cpu")
ON_A_DEVICE = "train", "train adapt", "train --resume run", "evaluate run", "predict run a.png"
ON_A_DEVICE += "export run", "inspect run", "reproduce 4"
DYNAMIC = ("--similarity", "Dynamic(Diagonal(), predictor=SphereNet(hidden=4))")


def make_run(similarity, tmp_path_factory):
    with tiny_world():
        folder = tmp_path_factory.mktemp("run") / "run"
        return train(replace(TINY, similarity=similarity), name="test", out=folder, device="cpu")


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    return make_run(TINY.similarity, tmp_path_factory)


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    return make_run(Static(Diagonal()), tmp_path_factory)


def test_train_prints_the_accuracy_and_the_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "quickstart", *SMALL, *DYNAMIC, "--seed", "3"]) == 0
    told = capsys.readouterr()
    summary = json.loads((tmp_path / "runs/quickstart-seed3/summary.json").read_text())
    assert f"test accuracy {100 * summary['test_accuracy']:.2f} % after 4 steps" in told.out
    assert "run folder runs/quickstart-seed3" in told.out
    assert len(told.err.splitlines()) < 12


def test_train_takes_the_named_recipe_and_every_field(tmp_path):
    args = ["cifar10-static-uns", "--budget", "0.0001", "--out", str(tmp_path / "run")]
    assert cli.main(["train", *args, "--width", "0.1", "--batch-size", "4", "--flip", "False"]) == 0
    run = read_run(tmp_path / "run")
    assert (run.name, run.budget) == ("cifar10-static-uns", 0.0001)
    assert run.recipe.similarity == RECIPES["cifar10-static-uns"].similarity
    assert run.recipe.steps == scale_recipe(RECIPES["cifar10-static-uns"], 0.0001).steps == 6
    assert (run.recipe.width, run.recipe.batch_size, run.recipe.flip) == (0.1, 4, False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "no command is named 'trian'; did you mean 'train'?"),
        (["train", "cifar10-cn"], "no recipe is named 'cifar10-cn'; did you mean 'cifar10-cnn'?"),
        (["train", "xyz"], "no recipe is named 'xyz'; there are quickstart, fewshot-quickstart, "),
        (["train", "--momentun", "0.5"], "--momentum"),
        (["train", "--variant", "released"], "`variant` released exists for cifar10-cnn, "),
        (["train", "cifar10-cnn", "--variant=tf"], "must be one of paper, released, got 'tf'"),
        (["train", "--steps", "many"], "--steps"),
        (["train", "--image-size", "x"], "it must be an integer or None, got 'x'"),
        (["table", "4", "--budget", "x"], "it must be a number or None, got 'x'"),
        (["train", "--data", "\ud800"], "`data` must be valid UTF-8, got"),
        (["train", "--similarity", "dynamic-diagnal"], "dynamic-diagonal"),
        (["train", "--precision", "bf61"], "bf16"),
        (["train", "--budget", "0", "--out", "never"], "`budget` must be above 0, got 0.0"),
        (["train", "--budget", "1e308", "--out", "never"], "at most 1,000,000, got 1e+308"),
        (["train", "--resume", "run", "--lr", "1"], "--lr cannot be given with --resume"),
        (["train", "--resume=run", "--variant", "released"], "--variant cannot be given with"),
        (["train", "quickstart", "--resume=run"], "quickstart cannot be given with --resume"),
        (["evaluate"], "RUN"),
        (["predict", "run"], "at least one image"),
        *(
            ([*words.split(), "--device", "gpu"], "`device` must be auto, cpu, cuda, mps, xpu, got")
            for words in ON_A_DEVICE
        ),
        (["train", "--device", "cuda:99"], "`device` must be present, got 'cuda:99'"),
        (["models", "cnn8"], "no network is named 'cnn8'; did you mean 'cnn9'?"),
        (["models", "--similarity", "static-diagnal"], "nearest: static-diagonal"),
        (["data", "cifar11"], "no data set is named 'cifar11'; did you mean 'cifar10'?"),
    ],
)
def test_wrong_command_lines_exit_with_2_and_the_nearest_name(args, message, capsys):
    assert cli.main(args) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evaluate", "nowhere"], "nowhere is not a run folder: it has no config.json"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["export", "nowhere"], "nowhere is not a run folder"),
        (
            ["train", "--dataset", "folder", "--data", "1.5"],
            "1.5 must be a folder of class folders",
        ),
        (["train", "adapt", "--backbone", "1.5", "--data", "."], "`backbone` must be timm:NAME"),
        (["report", "1.5"], "1.5 is not a run folder"),
    ],
)
def test_failures_exit_with_1_and_one_line(args, message, capsys):
    assert cli.main(args) == 1
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("size", [(2**55,), (2**40, 2**40)])
def test_more_memory_than_there_is_takes_one_line(size, capsys):
    assert cli.exit_code(lambda: torch.empty(size).dim()) == 1
    assert capsys.readouterr().err.startswith("nsim: out of memory: ")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        cli.exit_code(lambda: (torch.ones(2, 3) @ torch.ones(2, 3)).dim())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"command": "nsim fewshot train"}', "already, a run of `nsim fewshot train`"),
        ("{}", "exists already; continue it with `nsim train --resume"),
        ("no json", "exists already, and is not a run folder; name another folder with --out"),
        (None, "exists already, and is not a run folder; name another folder with --out"),
    ],
)
def test_a_folder_in_the_way_is_called_what_it_is(config, message, tmp_path, capsys):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert cli.main(["train", *SMALL, "--out", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--crop", "100"], "`crop` must be smaller than the images, which have 8x8 pixels, got"),
        (["--validation", "9000"], "`validation` must leave every class an image to train on"),
    ],
)
def test_settings_that_the_data_do_not_allow_leave_no_folder(args, message, tmp_path, capsys):
    assert cli.main(["train", *SMALL, *args, "--out", str(tmp_path / "run")]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_data_exit_with_1_and_say_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "load_dataset", LOAD)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "cifar10-cnn", "--data", str(tmp_path)]) == 1
    assert "nsim data cifar10" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "precision"), [((), "fp32"), (("--precision", "bf16"), "bf16")])
def test_evaluate_scores_in_float32_or_as_it_is_told(
    static, tmp_path, capsys, passes, *, words, precision
):
    """Whatever the precision of training, and says in which."""
    folder = shutil.copytree(static.path, tmp_path / "run")
    facts = json.loads((static.path / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(facts | {"precision": "bf16"}))
    command = ["evaluate", str(folder), "--device", "cpu", *words]
    assert cli.main(command) == 0
    assert f"32 test images, in {precision}\n" in capsys.readouterr().out
    assert passes == {(False, precision == "bf16")}
    assert cli.main([*command, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["score_precision"] == precision


@pytest.mark.parametrize(
    ("words", "module"),
    [((), "onnxruntime"), ((), "onnxscript"), (("--format", "pt2", "--int8"), "torchao")],
)
def test_a_missing_library_is_told_before_images_are_read(
    static, monkeypatch, capsys, words, module
):
    monkeypatch.setattr(session, "load_task", lambda *_: pytest.fail("images are read"))
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["export", str(static.path), *words]) == 1
    assert f"needs {module}: {install_command('export')}" in capsys.readouterr().err


def test_predict_names_the_likeliest_classes(dynamic, tmp_path, capsys):
    images = make_dataset().test
    for index in range(2):
        picture = Image.fromarray(images.pixels[index, 0].numpy())
        picture.save(tmp_path / f"{index}.png")
    paths = [str(tmp_path / f"{index}.png") for index in range(2)]
    assert cli.main(["predict", str(dynamic.path), *paths, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    chances = load(dynamic)(dynamic.preprocess(images.pixels[:2])).softmax(1)
    for path, line, row in zip(paths, lines, chances, strict=True):
        assert line.startswith(f"{path}: {CLASSES[row.argmax()]} {100 * row.max():.1f} %, ")
        assert line.count("%") == 3


def test_predict_sees_an_image_as_training_on_a_folder_does(dynamic, tmp_path, monkeypatch):
    pixels = torch.randint(0, 256, (240, 400), generator=torch.Generator().manual_seed(0))
    for part in ("train", "test"):
        path = tmp_path / part / "a" / "wide.jpg"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    (trained,) = LOAD("folder", tmp_path, image_size=8, draft=True).test.pixels
    seen = []
    real = training.predict_logits
    monkeypatch.setattr(training, "predict_logits", lambda *a: seen.append(a[1]) or real(*a))
    assert cli.main(["predict", str(dynamic.path), str(path)]) == 0
    assert torch.equal(seen[0][0], trained)


def test_dynamic_similarities_cannot_be_folded(dynamic, tmp_path, capsys):
    words = ["export", str(dynamic.path), "--format", "safetensors", "--fold"]
    assert cli.main([*words, "--out", str(tmp_path / "plain")]) == 1
    told = capsys.readouterr().err
    assert "has dynamic similarities, which cannot be folded" in told
    assert "dynamic=" not in told
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_inspect_draws_and_prints_the_files(dynamic, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(visualize, "draw", DRAW)
    assert cli.main(["inspect", str(dynamic.path), "--out", str(tmp_path / "pictures")]) == 0
    paths = capsys.readouterr().out.splitlines()
    assert paths
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_inspect_draws_on_the_images_given(dynamic, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(visualize, "draw", lambda _, x, out: seen.append(x) or [out])
    paths = [tmp_path / "dark.png", tmp_path / "light.png", tmp_path / "grey.png"]
    for path, shade in zip(paths, (0, 255, 99), strict=True):
        Image.new("L", (8, 8), shade).save(path)
    assert cli.main(["inspect", str(dynamic.path), "--images", *map(str, paths)]) == 0
    assert len(seen[0]) == 3
    assert seen[0][0].mean() < seen[0][2].mean() < seen[0][1].mean()


def test_inspect_of_a_plain_network_says_so(tmp_path, capsys):
    args = [*SMALL, "--similarity", "none", "--out", str(tmp_path / "run")]
    assert cli.main(["train", *args]) == 0
    assert cli.main(["inspect", str(tmp_path / "run")]) == 0
    assert "has no similarity to draw" in capsys.readouterr().out


def test_recipes_lists_the_families_in_60_lines(capsys):
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    shown = {line.split()[0]: line.split()[1] for line in lines if line.strip()}
    sizes = {name: f"{len(recipes)}" for name, (_, recipes) in FAMILIES.items()}
    assert shown.items() >= sizes.items()


def test_recipes_lists_every_recipe_or_those_of_a_family(capsys):
    assert cli.main(["recipes", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    firsts = [line.split()[0] for line in lines if line]
    assert [first for first in firsts if first in RECIPES] == list(RECIPES)
    row = next(line for line in lines if "cifar10-static-uns" in line)
    assert {"cifar10", "cnn9", "static-full", "64,000"} <= set(row.split())
    assert cli.main(["recipes", "--family", "bounds"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4
    assert cli.main(["recipes", "--family", "bound"]) == 2
    assert "no family is named 'bound'; did you mean 'bounds'?" in capsys.readouterr().err
    assert cli.main(["recipes", "all"]) == 2


@pytest.mark.long
def test_models_lists_every_network_with_every_similarity(capsys, monkeypatch):
    fewer = ("cnn9", "cnn10", "cnn9_condconv", "spherenet9")  # The same in less time.
    monkeypatch.setattr(models, "MODELS", {name: models.MODELS[name] for name in fewer})
    assert cli.main(["models"]) == 0
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["name", "classes", "image", "similarity", "parameters", "MACs"]
    rows = [
        (name, similarity)
        for name in models.MODELS
        for similarity in SIMILARITIES
        if similarity == "none" or name not in models.WITHOUT_SIMILARITY
    ]
    assert [(line[0], line[3]) for line in lines] == rows
    cnn10 = [line for line in lines if line[0] == "cnn10"]
    assert cnn10[0] == ["cnn10", "1000", "3x224x224", "none", "8,902,568", "1,049,792,512"]
    assert {line[5] for line in cnn10[:3]} == {"1,049,792,512"}
    assert cnn10[3][4] == "9,612,938"


def test_models_takes_names_and_similarities(capsys):
    args = ["cnn9", "convnet4", "--similarity", "none", "Static(Select())"]
    assert cli.main(["models", *args]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    names = [("cnn9", "none"), ("cnn9", "Static(Select())")]
    assert [(line[0], line[3]) for line in lines[:2]] == names
    assert [line[4] for line in lines[2:]] == ["92,848", f"{92_848 + 4 * 81:,}"]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_has_examples(command, capsys):
    assert cli.main([command, "--help"]) == 0
    _, separator, examples = capsys.readouterr().out.partition("example")
    assert separator
    assert f"  nsim {command}" in examples


def test_help_names_every_command_and_data_set(capsys):
    assert cli.main([]) == 0
    told = capsys.readouterr().out
    assert all(f"\n  {command} " in told for command in cli.COMMANDS)
    assert cli.main(["data", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*data.OURS, *data.IN_PLACE))


def test_the_installed_command_exits_with_its_code():
    """A process of its own: no traceback on stderr, and help imports nothing that takes seconds."""
    code = "import sys; from neural_similarity.lab.cli import main; code = main(); "
    code += "sys.exit(3 if {'matplotlib', 'torchvision'} & set(sys.modules) else code)"
    command = [sys.executable, "-W", "error", "-c", code, "train", "quikstart"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "nsim: no recipe is named 'quikstart'; did you mean 'quickstart'?\n"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"neural-similarity {ns.__version__}, torch 2.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "mini-cnn4", "--help"], "--retrain"),
        (["train", "cifar10-cnn", "--help"], "--penalty"),
        (["reproduce", "6", "--help"], "--shots"),
    ],
)
def test_a_recipe_or_table_says_what_kind_of_run_it_is(words, said, capsys):
    assert cli.main(words) == 0
    assert said in capsys.readouterr().out


def test_a_run_folder_says_what_kind_it_is(tmp_path, capsys):
    for name, command in (("plain", {}), ("few", {"command": "nsim fewshot train"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(command))
    assert cli.main(["evaluate", str(tmp_path / "plain"), "--help"]) == 0
    assert "--checkpoint" in capsys.readouterr().out
    assert cli.main(["evaluate", str(tmp_path / "few"), "--help"]) == 0
    assert "--shots" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mini-cnn4", "adapt", "cifar10-cnn"])
def test_a_recipe_cannot_be_named_beside_a_run_to_retrain(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", name, "--retrain", "runs/mini-cnn4-seed1"]) == 2
    assert f"{name} cannot be given with --retrain" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_predict_takes_folders_and_names_what_it_cannot_read(dynamic, tmp_path, capsys):
    images = make_dataset().test
    paths = [tmp_path / "in" / name for name in ("a/0.png", "a/1.png", "b.png", "c.png")]
    for path, pixels in zip(paths, images.pixels[:, 0], strict=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(path)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    assert cli.main(["predict", str(dynamic.path), str(tmp_path / "in"), str(paths[2])]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in whole] == [str(path) for path in paths]
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    missing = str(tmp_path / "missing.png")
    assert cli.main(["predict", str(dynamic.path), missing, str(tmp_path / "in")]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [whole[0], *whole[2:]]
    assert [line.split()[1] for line in told.err.splitlines()] == [missing, str(paths[1])]
    (tmp_path / "none").mkdir()
    assert cli.main(["predict", str(dynamic.path), str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'} must hold images" in capsys.readouterr().err


def test_predict_holds_a_few_images_at_a_time(dynamic, tmp_path, capsys, monkeypatch):
    for index, pixels in enumerate(make_dataset().test.pixels[:5, 0]):
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{index}.png")
    assert cli.main(["predict", str(dynamic.path), str(tmp_path)]) == 0
    whole, counts, real = capsys.readouterr().out, [], training.predict_logits
    monkeypatch.setattr(runs, "IMAGES_AT_ONCE", 2)
    monkeypatch.setattr(training, "predict_logits", lambda *a: counts.append(len(a[1])) or real(*a))
    assert cli.main(["predict", str(dynamic.path), str(tmp_path)]) == 0
    assert capsys.readouterr().out == whole
    assert counts == [2, 2, 1]

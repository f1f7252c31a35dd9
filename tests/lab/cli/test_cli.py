import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_images import CLASSES, DRAW, LOAD, TINY, make_dataset, tiny_world

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
SMALL = "--width 0.1 --steps 4 --drops 2 --batch-size 8 --device cpu"
ON_A_DEVICE = "train", "train adapt", "train --resume run", "evaluate run", "predict run a.png"
ON_A_DEVICE += "export run", "inspect run", "reproduce 4"
ANOTHER = "exists already, and is not a run folder; name another folder with --out"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """The run of a similarity, trained once."""

    @cache
    def trained(similarity):
        with tiny_world():
            folder = tmp_path_factory.mktemp("run") / "run"
            recipe = replace(TINY, similarity=similarity)
            return train(recipe, name="test", out=folder, device="cpu")

    return trained


@pytest.fixture
def dynamic(run_of):
    return run_of(TINY.similarity)


@pytest.fixture
def static(run_of):
    return run_of(Static(Diagonal()))


def save_images(folder, *names):
    """Test images, saved under names; their pixels."""
    images = make_dataset().test.pixels[: len(names)]
    for name, pixels in zip(names, images[:, 0], strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(folder / name)
    return images


def test_train_prints_the_accuracy_and_the_folder(tmp_path, nsim, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dynamic = "--similarity", "Dynamic(Diagonal(), predictor=SphereNet(hidden=4))"
    told = nsim(f"train quickstart {SMALL} --seed 3", *dynamic)
    summary = json.loads((tmp_path / "runs/quickstart-seed3/summary.json").read_text())
    assert f"test accuracy {100 * summary['test_accuracy']:.2f} % after 4 steps" in told.out
    assert "run folder runs/quickstart-seed3" in told.out
    assert len(told.err.splitlines()) < 12


def test_train_takes_the_named_recipe_and_every_field(tmp_path, nsim):
    fields = "--budget 0.0001 --width 0.1 --batch-size 4 --flip False --out"
    nsim(f"train cifar10-static-uns {fields}", tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.name, run.budget) == ("cifar10-static-uns", 0.0001)
    assert run.recipe.similarity == RECIPES["cifar10-static-uns"].similarity
    assert run.recipe.steps == scale_recipe(RECIPES["cifar10-static-uns"], 0.0001).steps == 6
    assert (run.recipe.width, run.recipe.batch_size, run.recipe.flip) == (0.1, 4, False)


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        (2, "trian", "no command is named 'trian'; did you mean 'train'?"),
        (2, "train cifar10-cn", "no recipe is named 'cifar10-cn'; did you mean 'cifar10-cnn'?"),
        (2, "train xyz", "no recipe is named 'xyz'; there are quickstart, fewshot-quickstart, "),
        (2, "train --momentun 0.5", "--momentum"),
        (2, "train --variant released", "`variant` released exists for cifar10-cnn, "),
        (2, "train cifar10-cnn --variant=tf", "must be one of paper, released, got 'tf'"),
        (2, "train --steps many", "--steps"),
        (2, "train --image-size x", "it must be an integer or None, got 'x'"),
        (2, "table 4 --budget x", "it must be a number or None, got 'x'"),
        (2, "train --data \ud800", "`data` must be valid UTF-8, got"),
        (2, "train --similarity dynamic-diagnal", "dynamic-diagonal"),
        (2, "train --precision bf61", "bf16"),
        (2, "train --budget 0", "`budget` must be above 0, got 0.0"),
        (2, "train --budget 1e308", "at most 1,000,000, got 1e+308"),
        (2, "train --resume run --lr 1", "--lr cannot be given with --resume"),
        (2, "train --resume=run --variant released", "--variant cannot be given with"),
        (2, "train quickstart --resume=run", "quickstart cannot be given with --resume"),
        *(
            (2, f"train {name} --retrain run", f"{name} cannot be given with --retrain")
            for name in ("mini-cnn4", "adapt", "cifar10-cnn")
        ),
        (2, "evaluate", "RUN"),
        (2, "predict run", "at least one image"),
        *(
            (2, f"{words} --device gpu", "`device` must be auto, cpu, cuda, mps, xpu, got")
            for words in ON_A_DEVICE
        ),
        (2, "train --device cuda:99", "`device` must be present, got 'cuda:99'"),
        (2, "models cnn8", "no network is named 'cnn8'; did you mean 'cnn9'?"),
        (2, "models --similarity static-diagnal", "nearest: static-diagonal"),
        (2, "data cifar11", "no data set is named 'cifar11'; did you mean 'cifar10'?"),
        (2, "recipes --family bound", "no family is named 'bound'; did you mean 'bounds'?"),
        (2, "recipes all", "all"),
        (2, "report", "needs at least one run folder"),
        (2, "completion cmd", "no shell is named 'cmd'; there are bash, zsh"),
        (1, "evaluate nowhere", "nowhere is not a run folder: it has no config.json"),
        (1, "train --resume nowhere", "nowhere is not a run folder"),
        (1, "export nowhere", "nowhere is not a run folder"),
        (1, "report 1.5", "1.5 is not a run folder"),
        (1, "train --dataset folder --data 1.5", "1.5 must be a folder of class folders"),
        (1, "train adapt --backbone 1.5 --data .", "`backbone` must be timm:NAME"),
        (1, "train cifar10-cnn --data .", "nsim data cifar10"),
        (
            1,
            f"train {SMALL} --out run --crop 100",
            "`crop` must be smaller than the images, which have 28x",
        ),
        (
            1,
            f"train {SMALL} --out run --validation 9000",
            "`validation` must leave every class an image to",
        ),
    ],
)
def test_what_cannot_be_done_is_told_and_leaves_nothing(
    tmp_path, nsim, monkeypatch, *, code, line, message
):
    """Wrong words exit with 2 and the nearest name, what fails with 1 and one line."""
    monkeypatch.setattr(data, "load_dataset", LOAD)
    monkeypatch.chdir(tmp_path)
    told = nsim(line, code=code).err
    if code == 1:
        *notices, told = told.splitlines()
        assert SMALL in line or not notices
    assert message in " ".join(told.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [(2**55,), (2**40, 2**40)])
def test_more_memory_than_there_is_takes_one_line(size, capsys):
    assert cli.exit_code(lambda: torch.empty(size).dim()) == 1
    assert capsys.readouterr().err.startswith("nsim: out of memory: ")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        cli.exit_code(lambda: (torch.ones(2, 3) @ torch.ones(2, 3)).dim())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"command": "nsim fewshot train"}', "already, a run of kind 'nsim fewshot train'"),
        ("{}", "exists already; continue it with `nsim train --resume"),
        ("no json", ANOTHER),
        (None, ANOTHER),
    ],
)
def test_a_folder_in_the_way_is_called_what_it_is(config, message, tmp_path, nsim):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert message in nsim(f"train {SMALL} --out", tmp_path, code=1).err


@pytest.mark.parametrize(("words", "precision"), [("", "fp32"), ("--precision bf16", "bf16")])
def test_evaluate_scores_in_float32_or_as_it_is_told(
    static, tmp_path, nsim, passes, *, words, precision
):
    """Whatever the precision of training, and says in which."""
    folder = shutil.copytree(static.path, tmp_path / "run")
    facts = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(facts | {"precision": "bf16"}))
    command = f"evaluate {folder} --device cpu {words}"
    assert f"32 test images, in {precision}\n" in nsim(command).out
    assert passes == {(False, precision == "bf16")}
    scores = json.loads(nsim(f"{command} --json").out)["scores"]
    assert scores["score_precision"] == precision


@pytest.mark.parametrize(
    ("words", "module"),
    [("", "onnxruntime"), ("", "onnxscript"), ("--format pt2 --int8", "torchao")],
)
def test_a_missing_library_is_told_before_images_are_read(static, monkeypatch, nsim, words, module):
    monkeypatch.setattr(session, "load_task", lambda *_: pytest.fail("images are read"))
    monkeypatch.setitem(sys.modules, module, None)
    told = nsim(f"export {words}", static.path, code=1).err
    assert f"needs {module}: {install_command('export')}" in told


def test_predict_sees_an_image_as_training_on_a_folder_does(dynamic, tmp_path, nsim, monkeypatch):
    pixels = torch.randint(0, 256, (240, 400), generator=torch.Generator().manual_seed(0))
    for part in ("train", "test"):
        path = tmp_path / part / "a" / "wide.jpg"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(path)
    (trained,) = LOAD("folder", tmp_path, image_size=8, draft=True).test.pixels
    seen, real = [], training.predict_logits
    monkeypatch.setattr(training, "predict_logits", lambda *a: seen.append(a[1]) or real(*a))
    nsim("predict", dynamic.path, path)
    assert torch.equal(seen[0][0], trained)


def test_dynamic_similarities_cannot_be_folded(dynamic, tmp_path, nsim):
    words = "export --format safetensors --fold --out", tmp_path / "plain", dynamic.path
    told = nsim(*words, code=1).err
    assert "has dynamic similarities, which cannot be folded" in told
    assert "dynamic=" not in told
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_inspect_draws_and_prints_the_files(dynamic, tmp_path, nsim, monkeypatch):
    monkeypatch.setattr(visualize, "draw", DRAW)
    paths = nsim("inspect --out", tmp_path / "pictures", dynamic.path).out.splitlines()
    assert paths
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_inspect_draws_on_the_images_given(dynamic, tmp_path, nsim, monkeypatch):
    seen = []
    monkeypatch.setattr(visualize, "draw", lambda _, x, out: seen.append(x) or [out])
    shades = {tmp_path / f"{shade}.png": shade for shade in (0, 255, 99)}
    for path, shade in shades.items():
        Image.new("L", (8, 8), shade).save(path)
    nsim("inspect", dynamic.path, "--images", *shades)
    assert len(seen[0]) == 3
    assert seen[0][0].mean() < seen[0][2].mean() < seen[0][1].mean()


def test_inspect_of_a_plain_network_says_so(run_of, nsim):
    assert "has no similarity to draw" in nsim("inspect", run_of(None).path).out


def test_recipes_lists_families_in_60_lines_and_every_recipe_or_those_of_a_family(nsim):
    lines = nsim("recipes").out.splitlines()
    assert len(lines) <= 60
    shown = {line.split()[0]: line.split()[1] for line in lines if line.strip()}
    sizes = {name: f"{len(recipes)}" for name, (_, recipes) in FAMILIES.items()}
    assert shown.items() >= sizes.items()
    lines = nsim("recipes --all").out.splitlines()
    firsts = [line.split()[0] for line in lines if line]
    assert [first for first in firsts if first in RECIPES] == list(RECIPES)
    row = next(line for line in lines if "cifar10-static-uns" in line)
    assert {"cifar10", "cnn9", "static-full", "64,000"} <= set(row.split())
    assert len(nsim("recipes --family bounds").out.splitlines()) == 2 + 4


@pytest.mark.long
def test_models_lists_every_network_with_every_similarity(nsim, monkeypatch):
    fewer = ("cnn9", "cnn10", "cnn9_condconv", "spherenet9")  # The same in less time.
    monkeypatch.setattr(models, "MODELS", {name: models.MODELS[name] for name in fewer})
    head, *lines = (line.split() for line in nsim("models").out.splitlines())
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


def test_models_takes_names_and_similarities(nsim):
    told = nsim("models cnn9 convnet4 --similarity none Static(Select())").out
    lines = [line.split() for line in told.splitlines()[1:]]
    names = [("cnn9", "none"), ("cnn9", "Static(Select())")]
    assert [(line[0], line[3]) for line in lines[:2]] == names
    assert [line[4] for line in lines[2:]] == ["92,848", f"{92_848 + 4 * 81:,}"]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_has_examples(command, nsim):
    _, separator, examples = nsim(f"{command} --help").out.partition("example")
    assert separator
    assert f"  nsim {command}" in examples


def test_help_names_every_command_and_data_set_beside_the_version(nsim):
    told = nsim("").out
    assert all(f"\n  {command} " in told for command in cli.COMMANDS)
    assert nsim("--version").out.startswith(f"neural-similarity {ns.__version__}, torch 2.")
    told = nsim("data --help").out
    assert all(name in told for name in (*data.OURS, *data.IN_PLACE))


def test_the_installed_command_exits_with_its_code():
    """A process of its own: no traceback on stderr, and help imports nothing that takes seconds."""
    code = "import sys; from neural_similarity.lab.cli import main; code = main(); "
    code += "sys.exit(3 if {'matplotlib', 'torchvision'} & set(sys.modules) else code)"
    command = [sys.executable, "-W", "error", "-c", code, "train", "quikstart"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "nsim: no recipe is named 'quikstart'; did you mean 'quickstart'?\n"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("train mini-cnn4", "--retrain"),
        ("train cifar10-cnn", "--penalty"),
        ("reproduce 6", "--shots"),
        ("evaluate plain", "--checkpoint"),
        ("evaluate few", "--shots"),
    ],
)
def test_help_is_of_the_kind_of_a_recipe_a_table_or_a_run(
    line, option, tmp_path, monkeypatch, nsim
):
    monkeypatch.chdir(tmp_path)
    for name, command in (("plain", {}), ("few", {"command": "nsim fewshot train"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(command))
    assert option in nsim(f"{line} --help").out


def test_predict_names_the_likeliest_classes_of_folders_and_what_it_cannot_read(
    dynamic, tmp_path, nsim
):
    paths = [tmp_path / "in" / name for name in ("a/0.png", "a/1.png", "b.png", "c.png")]
    images = save_images(tmp_path / "in", *(path.relative_to(tmp_path / "in") for path in paths))
    (tmp_path / "in" / "notes.txt").write_text("no image")
    whole = nsim("predict", dynamic.path, tmp_path / "in", paths[2]).out.splitlines()
    chances = load(dynamic)(dynamic.preprocess(images)).softmax(1)
    for path, line, row in zip(paths, whole, chances, strict=True):
        assert line.startswith(f"{path}: {CLASSES[row.argmax()]} {100 * row.max():.1f} %, ")
        assert line.count("%") == 3
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    missing = str(tmp_path / "missing.png")
    told = nsim("predict", dynamic.path, missing, tmp_path / "in", code=1)
    assert told.out.splitlines() == [whole[0], *whole[2:]]
    assert [line.split()[1] for line in told.err.splitlines()] == [missing, str(paths[1])]
    (tmp_path / "none").mkdir()
    told = nsim("predict", dynamic.path, tmp_path / "none", code=1)
    assert f"{tmp_path / 'none'} must hold images" in told.err


def test_predict_holds_a_few_images_at_a_time(dynamic, tmp_path, nsim, monkeypatch):
    save_images(tmp_path, *(f"{index}.png" for index in range(5)))
    whole = nsim("predict", dynamic.path, tmp_path).out
    counts, real = [], training.predict_logits
    monkeypatch.setattr(runs, "IMAGES_AT_ONCE", 2)
    monkeypatch.setattr(training, "predict_logits", lambda *a: counts.append(len(a[1])) or real(*a))
    assert nsim("predict", dynamic.path, tmp_path).out == whole
    assert counts == [2, 2, 1]

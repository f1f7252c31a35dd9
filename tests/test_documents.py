"""The code in README and docs does what the text says."""

import logging
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops, ImageStat
from torch import nn
from torch.distributed.tensor import DTensor
from torchrun import torchrun

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity.lab.data import load_dataset
from neural_similarity.lab.session import load, train
from neural_similarity.lab.train import Recipe
from neural_similarity.nn.layer import LAYER_CLASSES

ROOT = Path(__file__).parents[1]
IN_WORDS = {5: "five", 6: "six", 7: "seven", 13: "thirteen", 14: "fourteen"}
GPU = "docs/how-to/gpu.md"
EXAMPLES = {
    name: f"docs/tutorials/{name.replace('_', '-')}.md"
    for name in ("adapt", "similarity", "few_shot")
}


def blocks(name, language="python"):
    text = (ROOT / name).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(name, block=slice(None), **names):
    """Execute the blocks of a document and return its variables."""
    program = "\n".join(blocks(name)[block])
    exec(compile(program, name, "exec"), names)
    return names


def test_the_readme_moves_m_before_it_folds(capsys):
    names = run("README.md")
    assert float(capsys.readouterr().out.splitlines()[-1]) < 1e-4
    plain = names["plain"]
    assert not [m for m in plain.modules() if isinstance(m, ns.Conv2d)]
    stripped = ns.unconvert(names["adapted"])  # The same without M, which has moved the outputs.
    assert ns.max_difference(plain, stripped, names["images"]) > 1e-3


def has_module(names):
    return any(isinstance(value, nn.Module) for value in names.values())


def runs_a_recipe_of_ones_own(names):
    scores = names["network"](torch.randn(2, 1, 28, 28))
    return scores.shape == (2, 10) and Path("runs/mine/summary.json").exists()


def converts_another_output(names):
    return sum(isinstance(layer, ns.Conv2d) for layer in names["again"].modules()) > 10


def adapts_to_another_blur(names):
    restored = names["psnr"](names["turned"](names["x"]), names["test"])
    return names["after"] > names["before"] + 4 and restored > 20


def learns_every_gain(names):
    similarities = [getattr(layer, "similarity", None) for layer in names["network"].modules()]
    gains = [m.gain for m in similarities if isinstance(m, ns.nn.DynamicSimilarity)]
    return len(gains) == 19 and all(map(torch.any, gains)) and names["loss"].isfinite()


LONG = {"marks": pytest.mark.long}


@pytest.mark.parametrize(
    ("page", "holds"),
    [
        ("how-to/timm", has_module),
        ("tutorials/ship", has_module),
        ("how-to/learning-rates", lambda names: len(names["optimizer"].param_groups) >= 2),
        ("reference/similarities", bool),
        pytest.param("how-to/reproduce", runs_a_recipe_of_ones_own, **LONG),
        pytest.param("how-to/segmentation", converts_another_output, **LONG),
        pytest.param("how-to/restoration", adapts_to_another_blur, **LONG),
        pytest.param("how-to/gpu", learns_every_gain, **LONG),
    ],
)
def test_a_page_runs_as_a_program(page, holds, tmp_path, monkeypatch):
    """Its assertions hold, and what it says of its results."""
    first = page in ("reference/similarities", "how-to/gpu")
    monkeypatch.chdir(tmp_path)
    assert holds(run(f"docs/{page}.md", slice(1 if first else None)))


def test_errors_are_as_the_page_of_questions_says(tmp_path):
    text = (ROOT / "docs/how-to/questions.md").read_text("utf-8")
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(36, 2))
    similar, file = ns.convert(model, "static-full"), tmp_path / "mine.safetensors"
    nn.init.ones_(similar[2].weight)  # trained, and no freeze_backbone names it
    other = nn.Sequential(nn.Conv2d(1, 1, 3), *model[1:])
    tries = {
        "must name layers of the model": lambda: ns.convert(model, "static-full", where="layer4.*"),
        "must have a layer to convert that `where` chooses": lambda: ns.convert(
            nn.Sequential(nn.Conv2d(3, 4, 1)), "static-full"
        ),
        "cannot be folded": lambda: ns.fold(ns.convert(model, "dynamic-diagonal")),
        "must name what was trained or estimated besides M": lambda: ns.save_adapter(similar, file),
        "it belongs to another backbone: its weights differ": lambda: ns.load_adapter(
            other, ns.save_adapter(similar, file, extra="2")
        ),
    }
    for message, call in tries.items():
        assert message in text
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd")
def test_m_as_a_peft_adapter_beside_others(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    names = run("docs/how-to/peft.md")
    assert not torch.equal(names["again"](names["images"]), names["pretrained"](names["images"]))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 8
    assert "\n".join(rows) in (ROOT / "docs/how-to/peft.md").read_text("utf-8")


def test_the_page_on_peft_names_tests_that_exist():
    page, tools = (ROOT / "docs/evidence/peft.md").read_text("utf-8"), ROOT / "tests/tools"
    for row in page.partition("|---|---|\n")[2].partition("\n\n")[0].splitlines():
        tests = re.findall(r"`(\w+\.py)::(\w+)`", row)
        assert tests, row
        assert all(f"def {test}(" in (tools / file).read_text("utf-8") for file, test in tests), row


@pytest.mark.long
def test_a_converted_network_is_compiled_without_breaks(monkeypatch):
    """By torch's tracer and without its C++ compiler, which would take minutes."""
    compiled, modes = torch.compile, []

    def traced(network, *, mode, fullgraph):
        modes.append(mode)
        return compiled(network, backend="aot_eager", fullgraph=fullgraph)

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", traced)
    names = run(GPU, slice(2))
    assert modes == ["reduce-overhead"]
    assert all(parameter.grad is not None for parameter in names["network"].parameters())


@pytest.mark.long
def test_a_network_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(ns.models.MODELS, "tiny", None)  # So that it is gone afterwards.
    run("docs/reference/similarities.md", slice(-1, None))
    settings = {"dataset": "embedded", "steps": 2, "drops": (), "threads": 1}
    similarity = ns.Dynamic(ns.Diagonal())
    recipe = Recipe(model="tiny", width=0.25, similarity=similarity, **settings)
    network = load(train(recipe, out=tmp_path / "run"))
    assert network[0].out_channels == 8
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_adapting_a_network_logs_what_its_comments_promise(tmp_path, monkeypatch, capsys):
    """To whoever runs the page as a program of its own, without pytest's handlers."""
    monkeypatch.chdir(tmp_path)
    page, level = "docs/how-to/adapters.md", logging.root.level
    monkeypatch.setattr(logging.root, "handlers", [])
    try:
        logging.root.setLevel("WARNING")
        run(page)
    finally:
        logging.root.setLevel(level)
    shown, said = re.findall(r"# logs: (.*)", (ROOT / page).read_text("utf-8")), capsys.readouterr()
    assert shown
    for line in shown:
        logged = rf"^INFO:neural_similarity[\w.]*:{re.escape(line)}$"
        assert re.search(logged, said.err, re.MULTILINE)


def test_the_tables_of_docs_name_what_the_library_has():
    text = (ROOT / "docs/reference/similarities.md").read_text("utf-8")
    for structure in ns.nn.text.STRUCTURE_CLASSES:
        assert f"`{structure.__name__}(" in text
    for predictor in ns.nn.text.PREDICTORS:
        assert f"`{predictor.__name__}()`" in text


def test_the_readme_counts_the_family():
    counts = map(len, (LAYER_CLASSES, ns.nn.text.STRUCTURE_CLASSES, ns.nn.text.PREDICTORS))
    layers, structures, predictors = (IN_WORDS[count] for count in counts)
    expected = f"{layers} types of layers, {structures} structures of M and {predictors} predictors"
    assert expected in " ".join((ROOT / "README.md").read_text("utf-8").split())


@pytest.mark.long
def test_shipping_a_network(tmp_path):
    """The tutorial's path on embedded images, from training to onnxruntime in int8."""
    pytest.importorskip("torchao")
    command = [sys.executable, "-W", "ignore", ROOT / "examples/ship.py", tmp_path]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "onnxruntime agrees with torch in int8 on 50 test images" in told.stdout
    assert "int8: accuracy " in told.stdout
    assert (tmp_path / "adapted/adapter.safetensors").stat().st_size < 20_000
    page = "docs/tutorials/ship.md"
    shown = blocks(page, "text")[-1]
    assert _without_numbers(told.stdout.replace(f"{tmp_path}/", "")) == _without_numbers(shown)
    for word in re.findall(r"nsim (\w+)", (ROOT / page).read_text("utf-8")):
        assert word in cli.COMMANDS


@pytest.mark.long
def test_my_photographs_in_ten_minutes(tmp_path, monkeypatch, capsys):
    """The commands of the page on embedded images, with a small backbone and few steps."""
    monkeypatch.chdir(tmp_path)
    data = load_dataset("embedded").train
    for label in range(3):
        folder = tmp_path / "photographs" / f"class {label}"
        folder.mkdir(parents=True)
        for index in torch.nonzero(data.labels == label)[:8, 0].tolist():
            Image.fromarray(data.pixels[index, 0].numpy()).save(folder / f"{index}.png")
    small = "train --dataset embedded --model resnet20 --width 0.25 --similarity none --out start"
    assert cli.main([*small.split(), "--steps", "3"]) == 0
    for line in "".join(blocks("docs/tutorials/photographs.md", "sh")).splitlines():
        words = shlex.split(line.replace("timm:resnet18", "start"), comments=True)[1:]
        steps = ["--steps", "3"] if words[0] == "train" else []
        assert cli.main([*words, *steps]) == 0, line
    assert (tmp_path / "compare.html").exists()
    assert (tmp_path / "runs/m/network-folded.onnx").exists()
    assert capsys.readouterr().out.count("test accuracy") >= 4


def _without_numbers(text):
    """What a processor's rounding changes: numbers, and the class of the first image."""
    return re.sub(r"\d[\d.,:e+-]*|^[\w /-]+(?= \(3, 10\))", "#", text, flags=re.MULTILINE)


@pytest.mark.long
def test_the_commands_of_several_processes(tmp_path):
    commands = [shlex.split(line) for line in "".join(blocks(GPU, "sh")).splitlines()]
    assert len(commands) == 3
    for program, standalone, option, count, *words in commands:
        assert (program, standalone, option) == ("torchrun", "--standalone", "--nproc-per-node")
        fewer = [{"20": "4", "10": "2"}.get(word, word) for word in words]
        said = torchrun(int(count), *fewer, cwd=tmp_path)
        assert "quickstart-seed" in said
        assert said.count(" training, ") == ("--resume" not in words)
        assert said.count("find_unused_parameters") <= 1  # a warning of torch's
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


@pytest.mark.usefixtures("ranks")
def test_the_program_of_several_processes_shards_trains_and_gathers():
    """Of one process."""
    names = run(GPU, slice(-1, None))
    sharded = dict(names["model"].named_parameters())
    moved = 0
    for key, value in names["plain"].named_parameters():
        assert isinstance(sharded[key], DTensor)
        assert torch.equal(sharded[key].full_tensor(), value)
        moved += key.endswith("similarity.raw") and bool(value.any())
    assert moved == 9


def lines(text):
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def assert_shown(name, out):
    """The output of an example is its tutorial's, but for numbers, which depend on rounding."""
    shown, number = "".join(blocks(EXAMPLES[name], "text")), r"\s*-?\d+(\.\d*)?"
    told, text = ([re.sub(number, "#", line) for line in lines(each)] for each in (out, shown))
    assert told == text


@pytest.mark.long
def test_adapting_gains_and_is_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "examples/adapt.py"))
    out = capsys.readouterr().out
    assert_shown("adapt", out)
    bare = ns.unconvert(names["model"])
    assert ns.max_difference(names["plain"], bare, names["rotated"][:100]) > 0.1
    found = {
        name: float(number) for name, number in re.findall(r"^([\w, ]+): +([\d.]+) %", out, re.M)
    }
    assert found["M, rotated"] > found["rotated"] + 10
    assert out.count("\n| ") == 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "drawn"), [("similarity", ""), ("few_shot", "runs/cosine-prototypes/plots/gain.png")]
)
def test_an_example_shows_what_its_tutorial_shows(name, drawn, tmp_path):
    """In a process of its own: what others leave behind may round differently."""
    command = [sys.executable, "-W", "ignore", ROOT / "examples" / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert_shown(name, done.stdout)
    if drawn:
        files = tmp_path / drawn, (ROOT / EXAMPLES[name]).with_suffix(".png")
        first, second = (Image.open(file).convert("RGB") for file in files)
        assert first.size == second.size
        assert max(ImageStat.Stat(ImageChops.difference(first, second)).mean) < 20


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_tutorial_shows_its_program_whole(name):
    program = (ROOT / "examples" / f"{name}.py").read_text("utf-8").partition('"""\n\n')[2]
    assert lines("".join(blocks(EXAMPLES[name]))) == lines(program)

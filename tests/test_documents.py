"""The code in README and docs does what the text says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity.lab.session import load, train
from neural_similarity.lab.train import Recipe

ROOT = Path(__file__).parents[1]


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


def run(name, block=slice(None), **names):
    """Execute the blocks of a document and return its variables."""
    program = "\n".join(blocks(name)[block])
    exec(compile(program, name, "exec"), names)
    return names


def run_logged(name, caplog):
    """Execute a document, check that it logs what its comments promise; its variables."""
    with caplog.at_level("INFO", "neural_similarity"):
        names = run(name)
    shown = re.findall(r"# logs: (.*)", (ROOT / name).read_text("utf-8"))
    assert shown
    assert set(shown) <= set(caplog.messages)
    return names


def test_the_readme_moves_m_before_it_folds(capsys, caplog, monkeypatch):
    untrained = torchvision.models.resnet18
    monkeypatch.setattr(torchvision.models, "resnet18", lambda **_: untrained())
    names = run_logged("README.md", caplog)
    assert float(capsys.readouterr().out.splitlines()[-1]) < 1e-4
    plain = names["plain"]
    assert not [m for m in plain.modules() if isinstance(m, ns.Conv2d)]
    stripped = ns.unconvert(names["similar"])  # The same without M, which has moved the outputs.
    assert ns.max_difference(plain, stripped, names["images"]) > 1e-3


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.long
def test_a_recipe_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("docs/recipes.md")
    assert names["network"](torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert (tmp_path / "runs/mine/summary.json").exists()


def test_other_tools(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("docs/how-to.md")
    assert (tmp_path / "signs.safetensors").exists()
    assert ns.max_difference(names["one"], ns.unconvert(names["one"]), names["x"]) > 1e-3


def test_errors_are_as_the_page_of_questions_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("docs/faq.md")
    assert (tmp_path / "mine.safetensors").exists()


def test_the_family():
    run("docs/similarities.md", slice(1))


@pytest.mark.long
def test_a_network_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(ns.models.MODELS, "tiny", None)  # So that it is gone afterwards.
    run("docs/similarities.md", slice(-1, None))
    settings = {"dataset": "embedded", "steps": 2, "drops": (), "threads": 1}
    similarity = ns.Dynamic(ns.Diagonal())
    recipe = Recipe(model="tiny", width=0.25, similarity=similarity, **settings)
    network = load(train(recipe, out=tmp_path / "run"))
    assert network[0].out_channels == 8
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_adapting_a_network(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run_logged("docs/adapting.md", caplog)


def test_the_tables_of_docs_name_what_the_library_has():
    text = (ROOT / "docs/similarities.md").read_text("utf-8")
    for structure in ns.nn.text.STRUCTURES:
        assert f"`{structure.__name__}(" in text
    for predictor in ns.nn.text.PREDICTORS:
        assert f"`{predictor.__name__}()`" in text


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
    text = (ROOT / "docs/tutorials/ship.md").read_text("utf-8")
    shown = text.partition("## What it prints")[2].partition("```text\n")[2].partition("```")[0]
    assert _without_numbers(told.stdout.replace(f"{tmp_path}/", "")) == _without_numbers(shown)
    for word in re.findall(r"nsim (\w+)", text):
        assert word in cli.COMMANDS


def _without_numbers(text):
    """What a processor's rounding changes: numbers, and the class of the first image."""
    return re.sub(r"\d[\d.,:e+-]*|^[\w /-]+(?= \(3, 10\))", "#", text, flags=re.MULTILINE)

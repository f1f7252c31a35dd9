"""The code in README and docs does what the text says."""

import importlib
import re
from pathlib import Path

import torch

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.lab.session import load, train
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.train import Recipe

ROOT = Path(__file__).parents[1]


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


def test_the_ten_lines(capsys):
    names: dict = {}
    exec(compile(blocks("README.md")[0], "README.md", "exec"), names)
    assert names["y"].shape == (8, 128, 32, 32)
    assert not [m for m in names["plain"].modules() if isinstance(m, ns.Conv2d)]
    assert float(capsys.readouterr().out) < 1e-4
    stripped = ns.unconvert(names["net"])  # The same without M, which has moved the outputs.
    assert ns.max_difference(names["plain"], stripped, torch.randn(2, 3, 32, 32)) > 1e-3


def test_a_recipe_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(blocks("README.md")[2], "README.md", "exec"), names)
    assert names["network"](torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert (tmp_path / "runs/mine/summary.json").exists()


def test_write_your_own_similarity(tmp_path, monkeypatch):
    """A structure and a predictor of twenty lines each are layers like the library's own."""
    *similarities, _ = blocks("docs/similarities.md")
    (tmp_path / "own_similarity.py").write_text("\n".join(similarities))
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_similarity")
    structure = own.Mirrored()
    for case in testing.cases(structure):
        for law in testing.QUICK:
            if law != "text":
                testing.check(law, case)
    m = ns.Conv2d(2, 2, 3, similarity=ns.Static(structure)).similarity
    torch.nn.init.normal_(m.raw)
    assert torch.equal(m.matrix(), m.matrix().flip(0))
    y = own.layer(torch.randn(2, 8, 9, 9))
    assert y.shape == (2, 8, 4, 4)


def test_a_network_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(ns.models.MODELS, "tiny", None)  # So that it is gone afterwards.
    exec(blocks("docs/similarities.md")[-1], {"nn": torch.nn, "ns": ns})
    settings = {"dataset": "embedded", "steps": 2, "drops": (), "threads": 1}
    similarity = ns.Dynamic(ns.Diagonal())
    recipe = Recipe(model="tiny", width=0.25, similarity=similarity, **settings)
    network = load(train(recipe, out=tmp_path / "run"))
    assert network[0].out_channels == 8
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_adapting_a_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks("docs/adapting.md"))
    names: dict = {}
    exec(compile(program, "adapting.md", "exec"), names)
    text, printed = (ROOT / "docs/adapting.md").read_text("utf-8"), capsys.readouterr().out
    shown = re.findall(r"# prints: (.*)", text)
    assert len(shown) == 2
    for line in shown:
        assert line in printed


def test_a_method_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "cosine-prototypes", None)
    names: dict = {}
    exec(compile(blocks("docs/few-shot.md")[-1], "few-shot.md", "exec"), names)
    assert names["file"].exists()
    assert len(names["evaluation"].correct) == 600
    assert names["evaluation"].summary["accuracy"] > 0.6  # 1/3 by chance


def test_the_tables_of_docs_name_what_the_library_has():
    text = (ROOT / "docs/similarities.md").read_text("utf-8")
    for structure in ns.nn.text.STRUCTURES:
        assert f"`{structure.__name__}(" in text
    for predictor in ns.nn.text.PREDICTORS:
        assert f"`{predictor.__name__}()`" in text

"""The programs in examples/ run, and the tutorials show them and what they print."""

import re
import runpy
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat

import neural_similarity as ns
from neural_similarity.lab.tasks.few_shot.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = {"adapt": "adapt", "similarity": "similarity", "few_shot": "few-shot"}


def fenced(page, language):
    text = (ROOT / "docs/tutorials" / f"{page}.md").read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def lines(text):
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def without_numbers(text):
    """Accuracies and M depend on the processor's rounding."""
    return [re.sub(r"\s*-?\d+(\.\d*)?", "#", line) for line in lines(text)]


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_an_example_prints_what_its_tutorial_shows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "cosine-prototypes", None)  # So that it is gone afterwards.
    capsys.readouterr()
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    shown = "".join(fenced(PAGES[name], "text"))
    assert without_numbers(capsys.readouterr().out) == without_numbers(shown)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "drawn"),
    [("adapt", "pictures/similarities.png"), ("few_shot", "runs/cosine-prototypes/plots/gain.png")],
)
def test_an_example_draws_the_picture_of_its_tutorial(name, drawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "cosine-prototypes", None)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    files = tmp_path / drawn, ROOT / "docs/tutorials" / f"{PAGES[name]}.png"
    first, second = (Image.open(file).convert("RGB") for file in files)
    assert first.size == second.size
    difference = ImageStat.Stat(ImageChops.difference(first, second))
    assert max(difference.mean) < 20


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_shows_its_program_whole(name):
    program = (ROOT / "examples" / f"{name}.py").read_text("utf-8").partition('"""\n\n')[2]
    assert lines("".join(fenced(PAGES[name], "python"))) == lines(program)


@pytest.mark.long
def test_adapting_moves_m_and_the_outputs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "examples/adapt.py"))
    bare = ns.unconvert(names["model"])
    assert ns.max_difference(names["plain"], bare, names["unseen"][:100]) > 0.1
    found = dict(re.findall(r"(\w+, blurred): +(\d+) %", capsys.readouterr().out))
    assert int(found["adapted, blurred"]) > int(found["backbone, blurred"])
    assert found["folded, blurred"] == found["adapted, blurred"]

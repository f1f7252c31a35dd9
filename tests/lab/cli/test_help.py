"""`--help` of every command without torch, as the parsers print it, and what shells complete."""

import io
import json
import re
import shutil
import subprocess
import sys

import pytest

from neural_similarity.lab import cli
from neural_similarity.lab.cli.help_pages import help_page, page_path, print_page
from neural_similarity.lab.cli.page_writing import COMMAND_LINES, parsed_page
from neural_similarity.lab.cli.recipes import listed_families, recipe_lists
from neural_similarity.lab.recipes import FAMILIES, RECIPES
from neural_similarity.lab.recipes.basic import FAMILIES as BASIC
from neural_similarity.lab.recipes.listing import list_text

CHILD = """
import io, json, sys
sys.modules["torch"] = sys.modules["tyro"] = None  # Importing either is an error.
sys.modules["timm"] = None
from neural_similarity.lab.cli import main

def shown(words):
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    code = main(words)
    return [code, sys.stdout.buffer.getvalue().decode()]

TIMM = ["train", "adapt", "--backbone=timm:resnet18"]
lines = [[*line.split(), option] for line in json.load(sys.stdin) for option in ("--help", "-h")]
sys.__stdout__.write(json.dumps([shown(line) for line in (["trian"], ["--version"], TIMM, *lines)]))
"""


def test_help_without_torch_is_what_the_parser_prints(monkeypatch):
    """`python -m neural_similarity.lab.cli` writes the pages."""
    monkeypatch.setenv("COLUMNS", "80")
    parsed = {line: parsed_page(line) for line in COMMAND_LINES.values()}
    command = [sys.executable, "-W", "error", "-c", CHILD]
    child = subprocess.run(
        command, input=json.dumps(list(parsed)), capture_output=True, text=True, check=True
    )
    mistaken, versions, missing, *printed = json.loads(child.stdout)
    assert printed == [[0, page] for page in parsed.values() for _ in range(2)]
    assert mistaken == [2, ""]
    assert versions[0] == 0
    assert missing == [1, ""]
    assert "nsim: timm:resnet18 needs timm: pip install" in child.stderr


@pytest.mark.parametrize(
    ("columns", "encoding", "shown"),
    [("80", "utf-8", True), ("200", "utf-8", True), ("79", "utf-8", False), ("80", "ascii", False)],
)
def test_terminals_that_cannot_show_a_page_get_the_parsers(columns, encoding, shown, monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", columns)
    assert print_page(["train", "--help"]) == shown
    assert not print_page(["train", "--lr", "1", "--help"])


def test_a_recipes_page_is_its_kinds_and_says_what_differs():
    page = help_page("train", "signs-full")
    first, _, rest = page.partition("\n\n")
    assert first.startswith("signs-full is adapt with --")
    assert "--lr 0.03" in first
    assert rest == page_path("train-adapt").read_text("utf-8") == help_page("train", "adapt")
    assert help_page("train", "quickstart") == help_page("train")


def test_the_lists_of_recipes_are_theirs():
    own, paper = recipe_lists()
    others = {name: family for name, family in FAMILIES.items() if name not in BASIC}
    assert own.read_text("utf-8") == list_text(BASIC)
    assert paper.read_text("utf-8") == list_text(others)
    rows = [row for family in listed_families().values() for row in family.rows]
    assert [row[0] for row in rows] == list(RECIPES)


def test_help_begins_with_what_a_first_run_needs():
    options = re.findall(r"^│ (--[a-z-]+)", help_page("train", "adapt"), re.MULTILINE)
    first = "--data --out --backbone --train --similarity --where --steps --lr"
    assert options[:8] == first.split()


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    path = tmp_path_factory.mktemp("shell") / "nsim"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert cli.main(["completion", "bash"]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tab", "table"),
        ("train fewshot-quick", "fewshot-quickstart"),
        ("train quickstart --batch-s", "--batch-size"),
        ("train adapt --backb", "--backbone"),
        ("train rotation-90-tu", "rotation-90-turn"),
        ("report --o", "--out"),
    ],
)
def test_bash_completes(script, words, completed):
    typed = ["nsim", *words.split()]
    ask = f"source {script}; COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _nsim"
    command = ["bash", "-c", f'{ask}; echo "${{COMPREPLY[@]}}"']
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == [completed]

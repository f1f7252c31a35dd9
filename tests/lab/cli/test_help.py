"""`--help` of every command without torch, as the parsers print it."""

import io
import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from neural_similarity.files import read_json
from neural_similarity.lab.cli.help_pages import COLOUR, PAGES, kept_page, print_page
from neural_similarity.lab.cli.parsed_help import (
    COMMAND_LINES,
    RECIPE_LINES,
    pages_content,
    parsed_page,
)
from neural_similarity.lab.recipes import RECIPES

KINDS = {type(recipe): f"train {name}" for name, recipe in RECIPES.items()}
EVERY_KIND = (*COMMAND_LINES, *KINDS.values())
CHILD = """
import io, json, sys
sys.modules["torch"] = sys.modules["tyro"] = None  # Importing either is an error.
from neural_similarity.lab.cli import main

def told(words):
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    code = main(words)
    return [code, sys.stdout.buffer.getvalue().decode()]

lines = [[*line.split(), option] for line in json.load(sys.stdin) for option in ("--help", "-h")]
sys.__stdout__.write(json.dumps([told(line) for line in (["trian"], ["--version"], *lines)]))
"""

same_parser = pytest.mark.skipif(
    read_json(PAGES)["tyro"] != version("tyro"), reason="the pages are of another tyro"
)


@pytest.fixture(scope="module")
def parsed():
    return {line: parsed_page(line) for line in EVERY_KIND}


@same_parser
def test_help_without_torch_is_what_the_parser_prints(parsed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = [sys.executable, "-W", "error", "-c", CHILD]
    child = subprocess.run(
        command, input=json.dumps(list(parsed)), capture_output=True, text=True, check=True
    )
    pages = [[0, COLOUR.sub("", page)] for page in parsed.values() for _ in range(2)]
    mistaken, versions, *printed = json.loads(child.stdout)
    assert printed == pages
    assert mistaken == [2, ""]
    assert versions[0] == 0


@same_parser
def test_pages_keep_the_colours_of_the_parser(parsed):
    """`python -m neural_similarity.lab.cli` writes them."""
    assert {line: kept_page(line) for line in parsed} == parsed


@same_parser
@pytest.mark.long
def test_pages_of_all_recipes_are_the_parsers():
    lines = COMMAND_LINES + RECIPE_LINES
    assert PAGES.read_text("utf-8") == pages_content({line: parsed_page(line) for line in lines})


@pytest.mark.parametrize(
    ("columns", "encoding", "kept"),
    [("80", "utf-8", True), ("200", "utf-8", True), ("79", "utf-8", False), ("80", "ascii", False)],
)
def test_terminals_that_cannot_show_a_page_get_the_parsers(columns, encoding, kept, monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", columns)
    assert print_page(["train", "--help"]) == kept
    assert not print_page(["train", "--lr", "1", "--help"])


def test_a_terminal_gets_colours(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", screen)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    assert print_page(["train", "--help"])
    assert screen.buffer.getvalue().decode() == kept_page("train")


def test_every_recipe_has_a_page():
    assert list(read_json(PAGES)["pages"]) == [*COMMAND_LINES, *RECIPE_LINES]

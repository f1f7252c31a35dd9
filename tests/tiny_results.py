"""A table of two tiny recipes, and records written by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_images import TINY, use_tiny_images

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import pack_correct
from neural_similarity.lab.train.recipe import recipe_to_json, scale_recipe
from neural_similarity.nn import Diagonal, Static
from neural_similarity_paper.tables import TABLES, Scope, missing_lines, wanted_records
from neural_similarity_paper.tables.records import records_folder
from neural_similarity_paper.tables.rows import Panel, Row, Table

PLAIN, STATIC = "tiny-plain", "tiny-static"
TINY_RECIPES = {
    PLAIN: replace(TINY, similarity=None, checkpoint_every=2),
    STATIC: replace(TINY, similarity=Static(Diagonal()), checkpoint_every=2),
}
ROWS = (Row("plain", PLAIN, 10.0), Row("static", STATIC, 9.0))
TIMES = "seconds", "images_per_second", "environment", "code"
TINY_TABLE = Table("A tiny table", (Panel("Tiny", "error", ROWS),))


@pytest.fixture
def tiny_table(monkeypatch):
    """The tiny data set, recipes and table "tiny"."""
    use_tiny_images(monkeypatch)
    for name, recipe in TINY_RECIPES.items():
        monkeypatch.setitem(RECIPES, name, recipe)
    monkeypatch.setitem(TABLES, "tiny", TINY_TABLE)


def write_by_hand(results, name, seed, correct, /, *, budget=1.0, seconds=60.0, **changes):
    """A record in which just the images `correct` are right; `changes` replace entries."""
    right = sum(correct) / len(correct)
    recipe = replace(scale_recipe(RECIPES[name], budget), seed=seed)
    content = {
        "recipe": name,
        "budget": budget,
        "seed": seed,
        "code": {"version": "0.1.0", "commit": "0123456789abcdef", "dirty": False},
        "environment": {
            **{"python": "3.11", "torch": "2.15", "platform": "Linux", "cpu": "A CPU"},
            **{"threads": 1, "device": "cpu", "precision": "fp32"},
        },
        "data": {"name": recipe.dataset, "digest": "d"},
        "config": recipe_to_json(recipe),
        "summary": {
            **{"test_accuracy": right, "test_error_percent": 100 * (1 - right), "test_loss": 1.0},
            **{"parameters": 1_234_567, "macs": 67_000_000, "seconds": seconds},
            **{"steps": recipe.steps, "command": f"nsim train {name}"},
        },
        "metrics": [],
        "correct": pack_correct(torch.tensor(correct, dtype=torch.bool)),
    }
    path = records_folder(results, name, budget) / f"{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


def edit(path, *into, **changes):
    """Changes entries of a JSON file, or of the object in it that the keys `into` lead to."""
    content = part = json.loads(path.read_text())
    for key in into:
        part = part[key]
    part |= changes
    path.write_text(json.dumps(content))


def timeless(value):
    """JSON, or that of a file, without what differs from run to run."""
    if isinstance(value, Path):
        return timeless(json.loads(value.read_text("utf-8")))
    if isinstance(value, dict):
        return {name: timeless(entry) for name, entry in value.items() if name not in TIMES}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def lines_of(folder, *, seeds=(1, 2), only=(), budget=1.0, **changes):
    """The lines that the tiny table lacks below `folder`."""
    places = {name: folder / name for name in ("results", "runs", "data")}
    scope = Scope(**{"budget": budget} | places | changes)
    return missing_lines(wanted_records(TINY_TABLE.choose_rows(only, ()), seeds), scope)

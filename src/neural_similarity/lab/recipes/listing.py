"""The list of recipes that `nsim recipes` shows without importing torch."""

import json
from pathlib import Path
from typing import Any

from neural_similarity.lab.recipes import FEW_SHOT, GROUPS
from neural_similarity.lab.train.recipe import Recipe

LIST = Path(__file__).with_name("list.json")
COLUMNS = ("name", "data", "model", "similarity", "steps", "description")
FEW_SHOT_GROUP = "Few-shot learning, table 6"
FEW_SHOT_COLUMNS = ("name", "data", "model", "similarity", "method", "steps", "description")


def listed() -> str:
    """The content of `list.json`: columns and rows of every group."""
    groups: dict[str, Any] = {
        title: {"columns": COLUMNS, "rows": [_row(name, *entry) for name, entry in group.items()]}
        for title, group in GROUPS.items()
    }
    rows = []
    for name, (text, recipe) in FEW_SHOT.items():
        row = _row(name, text, recipe)
        rows.append([*row[:4], recipe.method, *row[4:]])
    groups[FEW_SHOT_GROUP] = {"columns": FEW_SHOT_COLUMNS, "rows": rows}
    return json.dumps(groups, indent=0, ensure_ascii=False) + "\n"


def _row(name: str, text: str, recipe: Recipe) -> list[str]:
    similarity = "none"
    if recipe.similarity is not None:
        parts = recipe.similarity, recipe.similarity.structure
        similarity = "-".join(type(part).__name__ for part in parts).lower()
    named = getattr(recipe, "backbone", "").partition(":")[2]  # timm:NAME
    return [name, recipe.dataset, named or recipe.model, similarity, f"{recipe.steps:,}", text]

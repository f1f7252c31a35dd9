"""The list of recipes that `nsim recipes` shows without importing torch."""

import json
from pathlib import Path

from neural_similarity.lab.recipes import FAMILIES
from neural_similarity.lab.train.recipe import TrainingRecipe

LIST = Path(__file__).with_name("list.json")
LISTED_FIELDS = ("name", "data", "model", "similarity", "steps", "description")


def list_content() -> str:
    """The content of `list.json`: title and rows of every family."""
    families = {
        family: {
            "title": title,
            "rows": [_recipe_row(name, *entry) for name, entry in recipes.items()],
        }
        for family, (title, recipes) in FAMILIES.items()
    }
    content = {"columns": LISTED_FIELDS, "families": families}
    return json.dumps(content, indent=0, ensure_ascii=False) + "\n"


def _recipe_row(name: str, text: str, recipe: TrainingRecipe) -> list[str]:
    similarity = "none"
    if recipe.similarity is not None:
        parts = recipe.similarity, recipe.similarity.structure
        similarity = "-".join(type(part).__name__ for part in parts).lower()
    timm_name = getattr(recipe, "backbone", "").partition(":")[2]  # timm:NAME
    return [name, recipe.dataset, timm_name or recipe.model, similarity, f"{recipe.steps:,}", text]

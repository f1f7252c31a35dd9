"""Reading recipes from a file of families, `recipes.toml` beside this module."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from neural_similarity.lab.recipes.families import Family, Recipes
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe
from neural_similarity.nn import parse_similarity

KINDS: dict[str, type[TrainingRecipe]] = {
    "classification": Recipe,
    "adaptation": AdaptationRecipe,
    "few-shot": FewShotRecipe,
}
NOT_SETTINGS = ("text", "like", "from")


def read_families(path: Path) -> tuple[dict[str, Family], dict[str, str]]:
    """The families of a file by name, and the starts of recipes that start from another's run."""
    content = tomllib.loads(path.read_text("utf-8"))
    similarities = content.pop("similarities")
    families: dict[str, Family] = {}
    known: dict[str, tuple[str, TrainingRecipe]] = {}
    starts: dict[str, str] = {}
    for name, family in content.items():
        if original := family.get("copy_of"):
            originals = families[original][1]
            recipes = _copied_recipes(family, originals, content[original]["prefix"])
            starts |= {c: starts[n] for c, n in zip(recipes, originals, strict=True) if n in starts}
        else:
            recipes = _defined_recipes(family, known, similarities)
            rows = family["recipes"].items()
            starts |= {family["prefix"] + key: row["from"] for key, row in rows if "from" in row}
        families[name] = family["title"], recipes
        known |= recipes
    return families, starts


def _defined_recipes(
    family: dict[str, Any], known: Recipes, similarities: Mapping[str, str]
) -> Recipes:
    """The recipes of a family, each like one that was read before or of the family's settings."""
    kind, shared = KINDS[family.get("kind", "classification")], family.get("settings", {})
    recipes: dict[str, tuple[str, TrainingRecipe]] = {}
    for name, row in family["recipes"].items():
        settings = {key: value for key, value in row.items() if key not in NOT_SETTINGS}
        if like := row.get("like", family.get("like")):
            original = (recipes | dict(known))[like][1]
            recipe = replace(original, **setting_fields(settings, similarities))
        else:
            recipe = kind(**setting_fields(shared | settings, similarities))
        recipes[family["prefix"] + name] = row["text"], recipe
    return recipes


def _copied_recipes(family: dict[str, Any], originals: Recipes, prefix: str) -> Recipes:
    """The recipes of another family, with that one's `prefix`, in the settings of this one."""
    copies = {}
    for name, (text, recipe) in originals.items():
        method = getattr(recipe, "method", "")
        settings = family["settings"] | family.get("by_method", {}).get(method, {})
        copy = family["prefix"] + name.removeprefix(prefix) + family.get("suffix", "")
        copies[copy] = text, replace(recipe, **settings)
    return copies


def setting_fields(
    settings: Mapping[str, Any], similarities: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Settings as the fields of a recipe; a similarity is a text or the name of one."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    if text := fields.get("similarity"):
        fields["similarity"] = parse_similarity(similarities.get(text, text))
    return fields

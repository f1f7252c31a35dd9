"""The text of `list.txt` beside a package's recipes: what `nsim recipes` shows without torch.

A line that begins with # opens a family, with its title. The other lines have the columns of
`nsim recipes`, separated by tabs, and last the kind's recipe and the options by which it becomes
this one.
"""

import dataclasses
import shlex
from collections.abc import Mapping

from neural_similarity.lab.recipes import FAMILIES
from neural_similarity.lab.recipes.basic import FAMILIES as BASIC
from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.nn import format_similarity

BASICS = {
    type(recipe): (name, recipe)
    for _, family in BASIC.values()
    for name, (_, recipe) in family.items()
}
"""The recipe of the page that each kind's help is."""


def list_text(families: Mapping[str, Family] = FAMILIES) -> str:
    """The list of families."""
    lines = []
    for family, (title, recipes) in families.items():
        lines.append(f"# {family}: {title}")
        lines += ["\t".join(_columns(name, *entry)) for name, entry in recipes.items()]
    return "\n".join(lines) + "\n"


def _columns(name: str, text: str, recipe: TrainingRecipe) -> list[str]:
    similarity = "none"
    if recipe.similarity is not None:
        parts = recipe.similarity, recipe.similarity.structure
        similarity = "-".join(type(part).__name__ for part in parts).lower()
    timm_name = getattr(recipe, "backbone", "").partition(":")[2]  # timm:NAME
    model = timm_name or recipe.model
    front = [name, recipe.dataset, model, similarity, f"{recipe.steps:,}", text]
    return [*front, _settings(recipe)]


def _settings(recipe: TrainingRecipe) -> str:
    """The kind's recipe, and the options that make it this one."""
    name, base = BASICS[type(recipe)]
    words = [name]
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if value != getattr(base, field.name):
            words += [f"--{field.name.replace('_', '-')}", _word(field.name, value)]
    return shlex.join(words)


def _word(field: str, value: object) -> str:
    if field == "similarity":
        return format_similarity(value)  # pyright: ignore[reportArgumentType]
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"

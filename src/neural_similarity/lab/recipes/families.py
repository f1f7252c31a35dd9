"""The types of a family of recipes."""

from collections.abc import Mapping
from typing import TypeVar

from neural_similarity.lab.train.recipe import TrainingRecipe

Recipes = Mapping[str, tuple[str, TrainingRecipe]]
"""Descriptions and recipes by name."""
Family = tuple[str, Recipes]
"""The title of a family, and its recipes."""


AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)


def named(
    prefix: str, recipes: Mapping[str, tuple[str, AnyRecipe]]
) -> dict[str, tuple[str, AnyRecipe]]:
    """The recipes by names with a prefix."""
    return {f"{prefix}{name}": entry for name, entry in recipes.items()}

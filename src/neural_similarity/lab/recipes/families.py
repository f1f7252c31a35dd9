"""What a family of recipes is."""

from collections.abc import Mapping

from neural_similarity.lab.train.recipe import Recipe

Recipes = Mapping[str, tuple[str, Recipe]]
"""Descriptions and recipes by name."""
Family = tuple[str, Recipes]
"""What the family is, and its recipes."""

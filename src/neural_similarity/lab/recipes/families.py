"""The types of a family of recipes."""

from collections.abc import Mapping

from neural_similarity.lab.train.recipe import TrainingRecipe

Recipes = Mapping[str, tuple[str, TrainingRecipe]]
"""Descriptions and recipes by name."""
Family = tuple[str, Recipes]
"""The title of a family, and its recipes."""

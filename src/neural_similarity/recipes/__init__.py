"""Named recipes: one name per configuration; `nsim train NAME --field value` changes any field."""

from neural_similarity.recipes.cifar import CIFAR
from neural_similarity.recipes.few_shot import FEW_SHOT, FEW_SHOT_RECIPES
from neural_similarity.recipes.quickstart import QUICKSTART
from neural_similarity.train.recipe import Recipe

CATALOGUE: dict[str, tuple[str, Recipe]] = QUICKSTART | CIFAR
RECIPES: dict[str, Recipe] = {name: recipe for name, (_, recipe) in CATALOGUE.items()}
DESCRIPTIONS: dict[str, str] = {name: text for name, (text, _) in CATALOGUE.items()}

__all__ = ["DESCRIPTIONS", "FEW_SHOT", "FEW_SHOT_RECIPES", "RECIPES", "Recipe"]

"""Named recipes: one name per configuration; `nsim train NAME --field value` changes any field.

The laboratory has one for each kind of run. Other packages add families by the entry point
`neural_similarity.recipes`, a module with `FAMILIES` and `STARTS`; the paper's does so in a clone.
"""

from typing import TYPE_CHECKING, Any

from neural_similarity.choices import require_known
from neural_similarity.lab.plugins import installed_entries
from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe

if TYPE_CHECKING:
    FAMILIES: dict[str, Family]
    RECIPES: dict[str, TrainingRecipe]
    """All recipes by name."""
    STARTS: dict[str, str]
    """For each recipe that starts from another run, the recipe of that run."""

VARIANTS = ("paper", "released")
SUFFIX = "@released"


def __getattr__(name: str) -> Any:
    """All recipes, made when first asked for: the packages that add theirs import this one."""
    if name not in ("FAMILIES", "RECIPES", "STARTS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    families, starts = _gather_families()
    recipes = {key: recipe for _, each in families.values() for key, (_, recipe) in each.items()}
    globals().update(FAMILIES=families, RECIPES=recipes, STARTS=starts)
    return globals()[name]


def _gather_families() -> tuple[dict[str, Family], dict[str, str]]:
    from neural_similarity.lab.recipes.basic import FAMILIES

    families, starts = dict(FAMILIES), {}
    for entry in installed_entries("recipes"):
        module = entry.load()
        families |= module.FAMILIES
        starts |= module.STARTS
    return families, starts


def in_variant(name: str, variant: str) -> str:
    """The name of a recipe's variant: "paper" or "released"."""
    require_known("variant", variant, VARIANTS)
    base, recipes = name.removesuffix(SUFFIX), __getattr__("RECIPES")
    if variant == "paper":
        return base
    if base + SUFFIX not in recipes:
        others = ", ".join(n.removesuffix(SUFFIX) for n in recipes if n.endswith(SUFFIX))
        raise ValueError(f"`variant` released exists for {others or 'no recipe here'}, got {name}")
    return base + SUFFIX


__all__ = ["FAMILIES", "RECIPES", "STARTS", "Recipe", "in_variant"]

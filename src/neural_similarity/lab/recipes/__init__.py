"""Named recipes: one name per configuration; `nsim train NAME --field value` changes any field."""

from neural_similarity.choices import require_known
from neural_similarity.lab.recipes.adaptation import ADAPTATION
from neural_similarity.lab.recipes.cifar import CIFAR10_RECIPES, CIFAR100_RECIPES
from neural_similarity.lab.recipes.end import END_RECIPES
from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.recipes.few_shot import FEW_SHOT, FEW_SHOT_STARTS
from neural_similarity.lab.recipes.imagenet import IMAGENET_RECIPES, MINI100
from neural_similarity.lab.recipes.pretrained import PRETRAINED_RECIPES, PRETRAINED_STARTS
from neural_similarity.lab.recipes.quickstart import QUICKSTART
from neural_similarity.lab.recipes.released import RELEASED, SUFFIX, VARIANTS, released_variant
from neural_similarity.lab.recipes.studies import STUDIES
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe

FAMILIES: dict[str, Family] = {
    "quickstart": ("a few minutes on embedded images", QUICKSTART),
    "cifar10": ("CIFAR-10, tables 1 to 4 and 8", CIFAR10_RECIPES),
    "cifar100": ("CIFAR-100, tables 1 to 4 and 8", CIFAR100_RECIPES),
    "imagenet": ("ImageNet, table 5 and the authors' response", IMAGENET_RECIPES),
    "mini100": ("the same on Mini-ImageNet's 100 classes", MINI100),
    "end": ("CNN-9 trained to the end by a fast schedule", END_RECIPES),
    **ADAPTATION,
    **STUDIES,
    "pretrained": ("similarities on a pretrained network, §4", PRETRAINED_RECIPES),
    "released": ("CIFAR as the released code trains (--variant released)", RELEASED),
    **FEW_SHOT,
}
RECIPES: dict[str, TrainingRecipe] = {
    name: recipe for _, family in FAMILIES.values() for name, (_, recipe) in family.items()
}
"""All recipes by name."""
STARTS: dict[str, str] = FEW_SHOT_STARTS | PRETRAINED_STARTS
"""For each recipe that starts from another run, the recipe of that run."""


def in_variant(name: str, variant: str) -> str:
    """The name of a recipe's variant: "paper" or "released"."""
    require_known("variant", variant, VARIANTS)
    base = name.removesuffix(SUFFIX)
    if variant == "paper":
        return base
    if base + SUFFIX not in RECIPES:
        raise ValueError(
            f"`variant` released exists for {', '.join(n.removesuffix(SUFFIX) for n in RELEASED)}, "
            f"got {name}"
        )
    return base + SUFFIX


__all__ = ["FAMILIES", "RECIPES", "STARTS", "Recipe", "in_variant", "released_variant"]

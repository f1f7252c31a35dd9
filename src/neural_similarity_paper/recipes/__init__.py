"""The recipes of the paper's tables and of our studies; `nsim recipes` lists them in a clone."""

from neural_similarity.lab.recipes.families import Family
from neural_similarity_paper.recipes.adaptation import ADAPTATION
from neural_similarity_paper.recipes.cifar import CIFAR10_RECIPES, CIFAR100_RECIPES
from neural_similarity_paper.recipes.end import END_RECIPES
from neural_similarity_paper.recipes.few_shot import FEW_SHOT, FEW_SHOT_STARTS
from neural_similarity_paper.recipes.imagenet import IMAGENET_RECIPES, MINI100
from neural_similarity_paper.recipes.pretrained import PRETRAINED_RECIPES, PRETRAINED_STARTS
from neural_similarity_paper.recipes.released import RELEASED
from neural_similarity_paper.recipes.studies import STUDIES

FAMILIES: dict[str, Family] = {
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
STARTS: dict[str, str] = FEW_SHOT_STARTS | PRETRAINED_STARTS
"""For each recipe that starts from another run, the recipe of that run."""

"""One recipe for each kind of run, on images that come with the package or on a user's."""

from typing import Any

from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Diagonal, Dynamic, SphereNet

# For a laptop and some minutes: small batches, because few updates have to do; no mirror images,
# because the shoes of Fashion-MNIST all point the same way; fp32, because bf16 gains nothing at so
# few channels; one thread, because a second one gains a quarter on an idle machine and is a
# disaster on a busy one.
SMALL: dict[str, Any] = {
    "dataset": "embedded",
    "similarity": Dynamic(Diagonal(), predictor=SphereNet(hidden=16)),
    "batch_size": 32,
    "crop": 1,
    "flip": False,
    "precision": "fp32",
    "threads": 1,
}
"""Settings of both quick starts."""
QUICKSTART = {
    "quickstart": (
        "small, on the embedded images",
        Recipe(**SMALL, width=0.375, steps=500, lr=0.03, drops=(320, 440)),
    )
}
FEW_SHOT_QUICKSTART = {
    "fewshot-quickstart": (
        "3 ways on the embedded images",
        FewShotRecipe(**SMALL, width=0.5, steps=200, lr=3e-3),
    )
}
ADAPT = {"adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe())}
FAMILIES: dict[str, Family] = {
    "quickstart": ("a few minutes on embedded images", QUICKSTART),
    "fewshot": ("few-shot learning on embedded images, a minute", FEW_SHOT_QUICKSTART),
    "adapt": ("adaptation of a pretrained network to images of yours", ADAPT),
}

"""Section 4 for recognition: train a plain network, then M alone, then everything.

The paper gives no schedule. Both stages after the plain training have half its updates and a
tenfold drop in the middle. Static M trains at the best of several rates on 5,000 held-out training
images (docs/evidence/results.md), dynamic M at the same rate, not tuned. Everything together
trains at the rate of the plain schedule after its first drop. The control trains the plain network
on for as many updates as both stages have.
"""

from dataclasses import replace

from neural_similarity.lab.recipes.families import Recipes
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.nn import Diagonal, Dynamic, Full, Similarity, Static
from neural_similarity_paper.recipes.cifar import PREDICTOR

PLAIN = "cifar10-cnn"
ALL_LR = 0.01
"""The learning rate where everything trains."""
STAGE = AdaptationRecipe(
    dataset="cifar10",
    model="cnn9",
    channels=3,
    padding="symmetric",
    steps=32_000,
    drops=(16_000,),
    batch_size=128,
    weight_decay=5e-4,
    log_every=50,
    evaluate_every=1_000,
)
CONTROL = replace(STAGE, similarity=None, train="all", steps=64_000, drops=(48_000,), lr=ALL_LR)
PRETRAINED_SIMILARITIES: dict[str, tuple[str, Similarity, float]] = {
    "static-dns": ("static diagonal", Static(Diagonal()), 0.03),
    "static-uns": ("static full", Static(Full()), 0.03),
    "dynamic-dns": ("dynamic diagonal", Dynamic(Diagonal(), predictor=PREDICTOR), 0.03),
}
"""Names, similarities, and the rates at which they learn alone."""


def _pretrained_path(kind: str) -> dict[str, tuple[str, TrainingRecipe, str]]:
    """The stages, M alone and then everything: description, recipe and start, by name."""
    text, similarity, lr = PRETRAINED_SIMILARITIES[kind]
    name = f"cifar10-pretrained-{kind}"
    alone = replace(STAGE, similarity=similarity, train="M", lr=lr)
    together = replace(alone, train="M+all", lr=ALL_LR)
    return {
        f"{name}-m": (f"{text} M alone, on {PLAIN}", alone, PLAIN),
        name: (f"{text} M, and all else with it", together, f"{name}-m"),
    }


_ENTRIES = {
    "cifar10-pretrained-cnn": (f"{PLAIN} trained on, plain, for as long", CONTROL, PLAIN)
} | {
    name: entry
    for kind in PRETRAINED_SIMILARITIES
    for name, entry in _pretrained_path(kind).items()
}
PRETRAINED_RECIPES: Recipes = {n: entry[:2] for n, entry in _ENTRIES.items()}
PRETRAINED_STARTS = {name: start for name, (*_, start) in _ENTRIES.items()}
"""For each recipe, the recipe whose run is its backbone."""

"""CNN-9 trained to the end on a CPU: a schedule that converges fast, and its arms.

Batches of 256, Nesterov's momentum, one cycle of the learning rate, smoothed labels, alternating
flips, crops from reflected borders, decay of kernels alone: settings of public CIFAR-10 records
(https://github.com/KellerJordan/cifar10-airbench). The recipe is 32 epochs; a budget of 0.25, 0.5
or 1.78125 makes it 8, 16 or 57. docs/evidence/end.md has the design.
"""

from dataclasses import replace

from neural_similarity.lab.recipes.families import named
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Diagonal, Dynamic, Full, Light, Pooled, Similarity, Static
from neural_similarity_paper.recipes.cifar import DYNAMIC_WIDTH, PREDICTOR

EPOCHS = {8: 0.25, 16: 0.5, 32: 1.0, 57: 1.78125}
"""Budgets by number of epochs, each of 195 updates."""
PEAK, DECAY = 0.2, 5e-4
"""Where the search for an arm's learning rate and decay starts."""
END = Recipe(
    batch_size=256,
    steps=32 * 195,
    lr=PEAK,
    schedule="one-cycle",
    drops=(),
    nesterov=True,
    weight_decay=DECAY,
    decayed="kernels",
    label_smoothing=0.1,
    padding="reflect",
    flips="alternate",
)
CHOSEN: dict[str, tuple[float, float]] = {"cnn": (0.4, 2.5e-4), "static-full": (0.2, 1e-3)}
"""Learning rate and decay of each arm that has been searched: results/end-search has the sheets."""


def arm(name: str, text: str, similarity: Similarity | None = None, width: float = 1.0):
    """The entry of an arm, at what its search chose."""
    peak, decay = CHOSEN.get(name, (PEAK, DECAY))
    return text, replace(END, similarity=similarity, width=width, lr=peak, weight_decay=decay)


ARMS = {
    name: arm(name, *what)
    for name, what in {
        "cnn": ("plain CNN-9, trained to the end",),
        "static-full": ("one learned full matrix a layer", Static(Full())),
        "static-diagonal": ("one learned diagonal matrix a layer", Static(Diagonal())),
        "pooled": ("a full matrix an image, from averages", Dynamic(Full(), predictor=Pooled())),
        "dynamic-diagonal": (
            "a diagonal matrix predicted at every position",
            Dynamic(Diagonal(), predictor=PREDICTOR),
        ),
        "light-diagonal": (
            "a diagonal matrix by a light predictor",
            Dynamic(Diagonal(), predictor=Light()),
        ),
        "cnn-parameters": ("plain, with the parameters of dynamic-diagonal", None, DYNAMIC_WIDTH),
        "cnn-wide": ("plain, about as slow a step as dynamic-diagonal", None, 2.0),
    }.items()
}
END_RECIPES = {
    name: (text, replace(recipe, dataset=data))
    for data in ("cifar10", "cifar100")
    for name, (text, recipe) in named(f"{data}-end-", ARMS).items()
}

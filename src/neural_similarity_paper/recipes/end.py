"""CNN-9 trained to the end on a CPU: the arms, and the lengths of their schedules."""

from neural_similarity_paper.recipes import FAMILIES

EPOCHS = {8: 0.25, 16: 0.5, 32: 1.0, 57: 1.78125}
"""Budgets by number of epochs, each of 195 updates."""
PEAK, DECAY = 0.2, 5e-4
"""Where the search for an arm's learning rate and decay starts."""
ARMS = {name.removeprefix("cifar10-end-"): entry for name, entry in FAMILIES["end"][1].items()}
"""Descriptions and recipes of the arms."""
CHOSEN = {
    name: chosen
    for name, (_, recipe) in ARMS.items()
    if (chosen := (recipe.lr, recipe.weight_decay)) != (PEAK, DECAY)
}
"""Learning rate and decay of each arm that has been searched: results/end-search has the sheets."""

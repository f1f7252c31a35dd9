"""Adaptation of pretrained networks; `nsim train adapt --backbone ... --data FOLDER`."""

from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.train.recipe import Recipe

ADAPTATION: dict[str, tuple[str, Recipe]] = {
    "adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe())
}

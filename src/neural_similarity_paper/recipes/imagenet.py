"""ImageNet as in the paper's table 5, and ResNets as in table 2 of the authors' response.

Batch 128, momentum 0.9, 600,000 updates with the rate 0.1 divided by ten after 200,000, 375,000 and
550,000 (§7.1). The paper "mostly follows" AlexNet, whose decay is 5e-4; images are the usual random
crops, resized to 224 pixels. Of the ResNets the response says only that they have diagonal
similarities, and none in 1×1 convolutions: we train them with the same updates and the decay 1e-4
of He et al. (https://arxiv.org/abs/1512.03385).
"""

from dataclasses import replace

from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Diagonal, Dynamic, Static
from neural_similarity_paper.recipes.cifar import PREDICTOR

IMAGENET_BASE = Recipe(
    dataset="imagenet",
    model="cnn10",
    steps=600_000,
    drops=(200_000, 375_000, 550_000),
    crop=0,
    workers=8,
)
DYNAMIC = Dynamic(Diagonal(), predictor=PREDICTOR)
RESNETS = {
    f"imagenet-{model}{suffix}": (
        text,
        replace(IMAGENET_BASE, model=model, similarity=similarity, weight_decay=1e-4),
    )
    for model in ("resnet18", "resnet50")
    for suffix, text, similarity in (
        ("", "plain", None),
        ("-static-dns", "one learned diagonal matrix a layer", Static(Diagonal())),
        ("-dynamic-dns", "a diagonal matrix predicted at every position", DYNAMIC),
    )
}

IMAGENET_RECIPES = {
    "imagenet-cnn10": ("inner product: the plain CNN-10", IMAGENET_BASE),
    "imagenet-cnn10++": (
        "plain, deeper and wider, as many parameters",
        replace(IMAGENET_BASE, model="cnn10_plus"),
    ),
    "imagenet-cnn10-dynamic-dns": (
        "a diagonal matrix predicted at every position",
        replace(IMAGENET_BASE, similarity=DYNAMIC),
    ),
} | RESNETS
MINI100 = {
    name.replace("imagenet-", "mini100-"): (
        f"{text}; 84 pixels",
        replace(recipe, image_size=84, steps=8_000, drops=(2_667, 5_000, 7_333)),
    )
    for name, (text, recipe) in IMAGENET_RECIPES.items()
}
"""ImageNet's recipes on Mini-ImageNet's 100 classes, for those who cannot get ImageNet."""

"""CIFAR-10 and CIFAR-100 as in the paper's tables 1 to 4 and 8.

Tables 1 to 4 have one network and schedule for all rows: batch 128, momentum 0.9, 64,000 updates
with the rate divided by ten after 34,000 and 54,000, crops from images padded by 4, flips: the
defaults of `Recipe`. The whole training set is used. The paper does not say how images are padded
but refers to others; we mirror the border, as the released code does. Nor does it say whether
predictors are normalised: in the released code those of dynamic DNS are, and ours too
(`PREDICTOR`).

Table 8 is self-attention as a dynamic global similarity. Appendix B.2 gives the filters and "mild
data augmentation"; the rest follows the authors' code of the SphereNet with attention
(https://github.com/wy1iu/NSL, `nsl_global_ns`): mirror images and no crops, Adam at 1e-3 with the
usual drops, hyperspherical kernels with a penalty for orthogonality (1e-4) and without decay. We
train all four rows in this way; the plain networks' kernels decay by 5e-4, as the authors' other
kernels do. Their code also decays the attention's hyperspherical kernels.
"""

from dataclasses import replace

from neural_similarity.lab.recipes.families import named
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import (
    CNN,
    Diagonal,
    Dynamic,
    Full,
    Masked,
    Predictor,
    Shared,
    Similarity,
    SphereNet,
    Static,
    Structure,
)

BASE = Recipe(padding="symmetric")
PREDICTOR = SphereNet(batch_norm=True)
MILD = Recipe(model="cnn9_wide", crop=0, optimizer="adam", lr=1e-3)
SPHERE = replace(MILD, model="spherenet9", orthogonality=1e-4)
DYNAMIC_WIDTH = 1.165
"""Of a plain CNN-9 with 1,367,643 parameters where dynamic DNS has 1,371,933."""


def with_similarity(similarity: Similarity) -> Recipe:
    """The plain recipe with a similarity."""
    return replace(BASE, similarity=similarity)


def dynamic_recipe(structure: Structure, predictor: Predictor = PREDICTOR) -> Recipe:
    """The plain recipe with a dynamic similarity."""
    return with_similarity(Dynamic(structure, predictor=predictor))


CIFAR10_RECIPES = named(
    "cifar10-",
    {
        "cnn": ("inner product: the plain CNN-9", BASE),
        "cnn++": ("plain, deeper and wider than every NSN", replace(BASE, model="cnn9_plus")),
        "cnn-parameters": (
            "plain, with the parameters of dynamic DNS",
            replace(BASE, width=DYNAMIC_WIDTH),
        ),
        "static-dns": ("one learned diagonal matrix a layer", with_similarity(Static(Diagonal()))),
        "static-dns-j": (
            "a learned diagonal matrix and kernel shape",
            with_similarity(Static(Masked(Diagonal()))),
        ),
        "static-uns": ("one learned full matrix a layer", with_similarity(Static(Full()))),
        "dynamic-dns": (
            "a diagonal matrix predicted at every position",
            dynamic_recipe(Diagonal()),
        ),
        "dynamic-dns-j": (
            "a predicted diagonal matrix, a learned shape",
            dynamic_recipe(Masked(Diagonal())),
        ),
        "dynamic-dns-cnn": (
            "a diagonal matrix predicted by a bounded CNN",
            dynamic_recipe(Diagonal(), CNN(batch_norm=True)),
        ),
        "dynamic-dns-shared": (
            "a diagonal matrix from one shared predictor",
            dynamic_recipe(Diagonal(), Shared(batch_norm=True)),
        ),
        "dynamic-uns": ("a full matrix predicted at every position", dynamic_recipe(Full())),
        "wide-cnn": ("CNN-9 with 128, 192 and 256 filters", MILD),
        "wide-cnn-attention": (
            "the same with self-attention behind two pools",
            replace(MILD, model="cnn9_wide_attention"),
        ),
        "spherenet": ("the same with hyperspherical convolutions", SPHERE),
        "spherenet-attention": (
            "hyperspherical, with self-attention",
            replace(SPHERE, model="spherenet9_attention"),
        ),
    },
)
CIFAR100_RECIPES = {
    name.replace("cifar10-", "cifar100-"): (text, replace(recipe, dataset="cifar100"))
    for name, (text, recipe) in CIFAR10_RECIPES.items()
}
CIFAR = CIFAR10_RECIPES | CIFAR100_RECIPES

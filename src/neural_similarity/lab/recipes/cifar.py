"""CIFAR-10 and CIFAR-100 as in the paper's tables 1 to 4 and 8.

Tables 1 to 4 have one network and schedule for all rows: batch 128, momentum 0.9, 64,000 updates
with the rate divided by ten after 34,000 and 54,000, crops from images padded by 4, flips: the
defaults of `Recipe`. The whole training set is used. The paper does not say how images are padded
but refers to others; we mirror the border, as the released code does. Nor does it say whether
predictors are normalised: in the released code those of dynamic DNS are, and ours too
(`PREDICTOR`).
Table 8 is in `table8`.
"""

from dataclasses import replace

from neural_similarity.lab.recipes.table8 import CIFAR10 as TABLE_8
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import CNN, Diagonal, Dynamic, Full, Masked, Shared, SphereNet, Static

BASE = Recipe(padding="symmetric")
PREDICTOR = SphereNet(batch_norm=True)

CIFAR10 = {
    "cifar10-cnn": ("inner product: the plain CNN-9", BASE),
    "cifar10-cnn++": (
        "plain, deeper and wider than every NSN",
        replace(BASE, model="cnn9_plus"),
    ),
    "cifar10-static-dns": (
        "one learned diagonal matrix a layer",
        replace(BASE, similarity=Static(Diagonal())),
    ),
    "cifar10-static-dns-j": (
        "a learned diagonal matrix and kernel shape",
        replace(BASE, similarity=Static(Masked(Diagonal()))),
    ),
    "cifar10-static-uns": (
        "one learned full matrix a layer",
        replace(BASE, similarity=Static(Full())),
    ),
    "cifar10-dynamic-dns": (
        "a diagonal matrix predicted at every position",
        replace(BASE, similarity=Dynamic(Diagonal(), predictor=PREDICTOR)),
    ),
    "cifar10-dynamic-dns-j": (
        "a predicted diagonal matrix, a learned shape",
        replace(BASE, similarity=Dynamic(Masked(Diagonal()), predictor=PREDICTOR)),
    ),
    "cifar10-dynamic-dns-cnn": (
        "a diagonal matrix predicted by a bounded CNN",
        replace(BASE, similarity=Dynamic(Diagonal(), predictor=CNN(batch_norm=True))),
    ),
    "cifar10-dynamic-dns-shared": (
        "a diagonal matrix from one shared predictor",
        replace(BASE, similarity=Dynamic(Diagonal(), predictor=Shared(batch_norm=True))),
    ),
    "cifar10-dynamic-uns": (
        "a full matrix predicted at every position",
        replace(BASE, similarity=Dynamic(Full(), predictor=PREDICTOR)),
    ),
} | TABLE_8

CIFAR100 = {
    name.replace("cifar10-", "cifar100-"): (text, replace(recipe, dataset="cifar100"))
    for name, (text, recipe) in CIFAR10.items()
}

CIFAR = CIFAR10 | CIFAR100

"""CIFAR-10 as in the paper's table 4: one network and schedule, only the similarity varies.

Batch 128, momentum 0.9, 64,000 updates with the rate divided by ten after 34,000 and 54,000, crops
from images padded by 4, flips: the defaults of `Recipe`. The whole training set is used.
"""

from dataclasses import replace

from neural_similarity.nn import Diagonal, Dynamic, Full, Static
from neural_similarity.train.recipe import Recipe

BASE = Recipe()

CIFAR = {
    "cifar10-cnn": ("inner product: the plain CNN-9", BASE),
    "cifar10-cnn++": (
        "plain, deeper and wider than every NSN",
        replace(BASE, model="cnn9_plus"),
    ),
    "cifar10-static-dns": (
        "one learned diagonal matrix a layer",
        replace(BASE, similarity=Static(Diagonal())),
    ),
    "cifar10-static-uns": (
        "one learned full matrix a layer",
        replace(BASE, similarity=Static(Full())),
    ),
    "cifar10-dynamic-dns": (
        "a diagonal matrix predicted at every position",
        replace(BASE, similarity=Dynamic(Diagonal())),
    ),
    "cifar10-dynamic-uns": (
        "a full matrix predicted at every position",
        replace(BASE, similarity=Dynamic(Full())),
    ),
}

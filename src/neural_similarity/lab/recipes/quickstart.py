"""The recipe that `nsim train` runs: real images that come with the package, a few minutes."""

from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Diagonal, Dynamic, SphereNet

# Chosen for a laptop and a few minutes: small batches, because five hundred updates have to do; no
# mirror images, because the shoes of Fashion-MNIST all point the same way; fp32, because bf16
# gains nothing at so few channels; one thread, because a second one gains a quarter on an idle
# machine and is a disaster on a busy one.
QUICKSTART = {
    "quickstart": (
        "small, on the embedded images",
        Recipe(
            dataset="embedded",
            width=0.375,
            similarity=Dynamic(Diagonal(), predictor=SphereNet(hidden=16)),
            steps=500,
            lr=0.03,
            drops=(320, 440),
            batch_size=32,
            crop=1,
            flip=False,
            precision="fp32",
            threads=1,
        ),
    )
}

"""The recipe that `nsim train` runs: real images that come with the package, a minute or two."""

from neural_similarity.nn import Diagonal, Dynamic
from neural_similarity.train.recipe import Recipe

QUICKSTART = {
    "quickstart": (
        "dynamic diagonal similarity on the embedded images, about two minutes on a laptop",
        Recipe(
            dataset="embedded",
            width=0.5,
            similarity=Dynamic(Diagonal()),
            steps=600,
            drops=(400, 540),
            lr=0.1,
            crop=2,
        ),
    )
}

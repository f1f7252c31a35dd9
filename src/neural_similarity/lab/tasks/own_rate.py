"""The learning rate that an adaptation finds on its training images."""

from collections.abc import Sequence

import torch
from torch import nn

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.regularize import parameter_groups

MOST_IMAGES = 500
"""Images of which it is counted how many are wrong."""
MANY_WRONG = 0.2
"""The share of wrong images from which on the rate is not smaller."""


def find_rate(
    network: nn.Module, images: ImageSet, preprocess: Preprocess, recipe: TrainingRecipe
) -> float:
    r"""$\eta \min(1, w / 0.2)$, with the rate $\eta$ of `ns.parameter_groups` on a batch.

    w is the share of up to 500 images that the network gets wrong before it trains: where only few
    are, the gradient is that of few images, and steps as large as elsewhere fit these. A network
    with a new classifier has η itself, if it has more than one class.
    """
    order = torch.randperm(len(images), generator=seeded_generator("rate", recipe.seed))
    batches = [images.subset(part) for part in order[:MOST_IMAGES].split(recipe.batch_size)]
    x = preprocess(batches[0].head(recipe.batch_size))
    (group, *_) = parameter_groups(
        network,
        weight_decay=recipe.weight_decay,
        logits=lambda: network(x),
        momentum=recipe.momentum,
    )
    wrong = wrong_share(network, batches, preprocess)
    rate = float(f"{min(1.0, wrong / MANY_WRONG) * group['lr']:.3g}")
    print_notice(
        f"learning rate {rate:g}, from the curvature of the outputs and {100 * wrong:.0f} % wrong "
        "answers (--lr)"
    )
    return rate


@torch.no_grad()
def wrong_share(network: nn.Module, batches: Sequence[ImageSet], preprocess: Preprocess) -> float:
    """The share of images that the network, in its mode, gets wrong; at least half an image's.

    A last batch that is smaller than the others is left out: its statistics could be of one image.
    """
    whole = [batch for batch in batches if len(batch) == len(batches[0])]
    wrong = sum(
        int((network(preprocess(batch.head(len(batch)))).argmax(1) != batch.labels).sum())
        for batch in whole
    )
    return max(wrong, 0.5) / sum(map(len, whole))

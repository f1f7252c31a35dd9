"""The learning rate that an adaptation finds on its training images."""

from collections.abc import Sequence

import torch
from torch import nn

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.nn import evaluation_mode
from neural_similarity.regularize import parameter_groups

MOST_IMAGES = 500
"""Images of which it is counted how many are wrong, unless a batch has more."""
MANY_WRONG = 0.4
"""The share of wrong images from which on the rate is not smaller."""


def find_rate(
    network: nn.Module,
    images: ImageSet,
    preprocess: Preprocess,
    recipe: TrainingRecipe,
    new_classifier: bool,
) -> float:
    r"""$\eta \min(1, w / 0.4)$, with the rate $\eta$ of `ns.parameter_groups` on a batch.

    w is the share of up to 500 images that the network gets wrong before it trains: where only few
    are, the gradient comes from those few, and large steps fit them and spoil the others. With a
    new classifier it is $\eta$. Processes take that of the first one.

    Raises:
        RunError: the outputs set no rate.
    """
    order = torch.randperm(len(images), generator=seeded_generator("rate", recipe.seed))
    order = order[: max(MOST_IMAGES, recipe.batch_size)]
    batches = [images.subset(part) for part in order.split(recipe.batch_size)]
    x = preprocess(batches[0].head(recipe.batch_size))
    try:
        (group, *_) = parameter_groups(
            network,
            weight_decay=recipe.weight_decay,
            logits=lambda: network(x),
            momentum=recipe.momentum,
        )
    except ValueError as error:
        raise RunError(f"`lr` must be given, as the outputs set none: {error}") from error
    rate, errors_text = group["lr"], ""
    if not new_classifier:
        wrong, count = count_wrong(network, batches, preprocess)
        rate *= min(1.0, max(wrong, 0.5) / count / MANY_WRONG)
        errors_text = f" and {wrong} wrong answers for {count} images"
    (rate,) = distributed.gather_rows(torch.tensor([rate], dtype=torch.float64))[:1].tolist()
    rate = float(f"{rate:.3g}")
    print_notice(f"learning rate {rate:g}, from the curvature of the outputs{errors_text} (--lr)")
    return rate


@torch.no_grad()
def count_wrong(
    network: nn.Module, batches: Sequence[ImageSet], preprocess: Preprocess
) -> tuple[int, int]:
    """Images that the network gets wrong, and all of them.

    Normalisation is as in training, all else as in evaluation. A last batch that is smaller than
    the others is left out: its statistics could be of one image.
    """
    moving = [
        m for m in network.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.training
    ]
    whole = [batch for batch in batches if len(batch) == len(batches[0])]
    with evaluation_mode(network):
        for norm in moving:
            norm.train()
        wrong = sum(
            int((network(preprocess(batch.head(len(batch)))).argmax(1) != batch.labels).sum())
            for batch in whole
        )
    return wrong, sum(map(len, whole))

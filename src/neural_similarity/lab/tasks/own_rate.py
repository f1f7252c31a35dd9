"""The learning rates that an adaptation finds on its training images."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from neural_similarity.conversion import head_name
from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.nn import evaluation_mode
from neural_similarity.regularize import parameter_groups

MOST_IMAGES = 500
"""Images of which it is counted how many are wrong, unless a batch has more."""
# Chosen after a look at CIFAR-10 under changes that the map has, too.
MANY_WRONG = 0.4
"""The share of wrong images from which on the rate is not smaller."""
# Chosen on hand signs, 5 and 20 of each, seed 1: docs/evidence/new-heads.md.
STEP = 0.01
"""What an update changes at most: of M, gains and shifts; of kernels relative to their size."""
LOGIT_STEP = 0.4
"""What an update of a new head changes a logit by, at most."""


def new_head_fields(
    network: nn.Module, images: ImageSet, preprocess: Preprocess, recipe: AdaptationRecipe
) -> dict[str, Any]:
    """The settings with which a network trains from a new head on.

    Curvature says nothing yet: M's grows with the square of the head, by a factor of 1,000. Adam's
    updates are bounded, whatever the gradients: by `STEP`, and in the head by as much as moves
    logits by `LOGIT_STEP`, for inputs of the size that they have at the start. They rise for a
    fifth of the steps, while the head learns its classes, and fall to nothing.
    """
    fields: dict[str, Any] = {"optimizer": "adam", "nesterov": False, "schedule": "one-cycle"}
    fields |= {"drops": (), "lr": STEP, "relative_lr": True}
    text = f"Adam in one cycle, whose updates change M and kernels by {STEP:.0%}"
    if recipe.trains_head and recipe.head_lr is None:
        head = network.get_submodule(head_name(network))
        inputs: list[torch.Tensor] = []
        hook = head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with hook, evaluation_mode(network), torch.no_grad():
            network(preprocess(images.head(recipe.batch_size)))
        size = inputs[0].abs().mean().item() * head.get_parameter("weight")[0].numel()
        fields["head_lr"] = _agree(LOGIT_STEP / max(size, LOGIT_STEP))
        text += f", and logits by {LOGIT_STEP:g}: --head-lr {fields['head_lr']:g}"
    print_notice(f"{text} (--lr)")
    return fields


def find_rate(
    network: nn.Module,
    images: ImageSet,
    preprocess: Preprocess,
    recipe: TrainingRecipe,
    new_classifier: bool = False,
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
    rate = _agree(rate)
    print_notice(f"learning rate {rate:g}, from the curvature of the outputs{errors_text} (--lr)")
    return rate


def _agree(rate: float) -> float:
    """The rate of the first process, to three digits."""
    (rate,) = distributed.gather_rows(torch.tensor([rate], dtype=torch.float64))[:1].tolist()
    return float(f"{rate:.3g}")


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

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
"""Images of which errors are counted, unless a batch has more."""
# Chosen after a look at changes of CIFAR-10 that the map also reports: not independent of it.
MANY_WRONG = 0.4
"""At or above this share of wrong images, the rate is not reduced."""
# Chosen on hand signs and flowers, seeds 1 and 2: docs/evidence/new-heads.md.
STEP, LEAST_SHARE = 0.025, 0.1
"""What an update changes at most: of M, gains and shifts; of kernels relative to their size. The
share of it that is left where the classes are apart before training."""
BY_BATCH = 8
"""STEP grows by up to this factor where all weights train, without M, and the batch's statistics
normalise: by max(1, BY_BATCH · share)."""
LOGIT_STEP = 0.4
"""What an update of a new head changes a logit by, at most."""


def new_head_fields(
    network: nn.Module, images: ImageSet, preprocess: Preprocess, recipe: AdaptationRecipe
) -> dict[str, Any]:
    r"""The settings with which a network trains from a new head on.

    Curvature says nothing yet: M's grows with the square of the head, by a factor of 1,000. Adam's
    updates are bounded, whatever the gradients: by `STEP` $\min(1, 2w)$, $2w$ at least
    `LEAST_SHARE`, and in the head by as much as moves logits by `LOGIT_STEP`, for inputs of the
    size that they have at the start. w is the share of up to 500 images that lie nearer to another
    class's mean than to their own: where the network tells the classes apart already, there is
    little to change. The bounds rise for a fifth
    of the steps, while the head learns its classes, and fall to nothing. They are up to
    `BY_BATCH` times as large where all weights train, without M, and the batch's statistics
    normalise: there the scale of a kernel does not matter.
    """
    inputs, labels = _head_inputs(network, images, preprocess, recipe)
    wrong = nearest_mean_errors(inputs, labels, len(images.classes))
    fields: dict[str, Any] = {"optimizer": "adam", "nesterov": False, "schedule": "one-cycle"}
    fields |= {"drops": (), "relative_lr": True}
    share = min(1.0, max(LEAST_SHARE, 2 * wrong))
    factor = max(1.0, BY_BATCH * share) if _is_free_of_scale(network, recipe) else 1.0
    fields["lr"] = _first_process_rate(STEP * share * factor)
    text = (
        f"Adam in one cycle, whose updates change M and kernels by {fields['lr']:.1%} where "
        f"{wrong:.0%} of {len(labels)} images are nearer to another class"
    )
    if recipe.trains_head and recipe.head_lr is None:
        size = inputs.abs().sum(1).mean().item()
        fields["head_lr"] = _first_process_rate(LOGIT_STEP / max(size, LOGIT_STEP))
        text += f", and logits by {LOGIT_STEP:g}: --head-lr {fields['head_lr']:g}"
    print_notice(f"{text} (--lr)")
    return fields


def _is_free_of_scale(network: nn.Module, recipe: AdaptationRecipe) -> bool:
    """Whether all weights train, without M or a baseline, normalised by the batch's statistics."""
    kind, parts = nn.modules.batchnorm._NormBase, {*recipe.parts}
    weights = "all" in parts and parts.isdisjoint({"M", "baseline"})
    return (
        weights
        and recipe.norm_mode == "train"
        and any(isinstance(m, kind) for m in network.modules())
    )


@torch.no_grad()
def _head_inputs(
    network: nn.Module, images: ImageSet, preprocess: Preprocess, recipe: AdaptationRecipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the head gets for some images, (N, D), in evaluation; and their classes, (N,).

    A head at every position of a map or sequence gets their mean, as its logits are averaged.
    """
    inputs: list[torch.Tensor] = []
    head, batches = network.get_submodule(head_name(network)), _some_batches(images, recipe)
    channels = -1 if isinstance(head, nn.Linear) else 1

    def note(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        positions = args[0].movedim(channels, 1).unsqueeze(-1).flatten(2)
        inputs.append(positions.mean(2))

    with head.register_forward_pre_hook(note), evaluation_mode(network):
        for batch in batches:
            network(preprocess(batch.head(len(batch))))
    return torch.cat(inputs).double(), torch.cat([batch.labels for batch in batches])


def nearest_mean_errors(x: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
    r"""The share of rows of x (N, D) that lie nearer to another class's mean than to their own.

    A row x does not count for its own mean: without it, the mean $\mu$ of n rows is at
    $\frac{n}{n - 1} \|x - \mu\|$. A row that is alone in its class counts as wrong.
    """
    counts = labels.bincount(minlength=classes).to(x.dtype)
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, labels, x)
    distances = torch.cdist(x, sums / counts.unsqueeze(1).clamp_min(1))
    distances[:, counts == 0] = torch.inf
    rows, have = torch.arange(len(x)), counts[labels]
    own = distances[rows, labels] * have / (have - 1).clamp_min(1)
    distances[rows, labels] = own.where(have > 1, torch.inf)
    return (distances.argmin(1) != labels).double().mean().item()


def _some_batches(images: ImageSet, recipe: TrainingRecipe) -> list[ImageSet]:
    """Batches as large as in training, of up to `MOST_IMAGES` images unless one has more."""
    order = torch.randperm(len(images), generator=seeded_generator("rate", recipe.seed))
    order = order[: max(MOST_IMAGES, recipe.batch_size)]
    return [images.subset(part) for part in order.split(recipe.batch_size)]


def find_rate(
    network: nn.Module, images: ImageSet, preprocess: Preprocess, recipe: TrainingRecipe
) -> float:
    r"""$\eta \min(1, w / 0.4)$, with the rate $\eta$ of `ns.parameter_groups` on a batch.

    w is the share of up to 500 images that the network gets wrong before it trains, of half an
    image at least. Where only few are wrong, the gradient comes from those few, and large steps fit
    them and spoil the others. Processes take that of the first one.

    Raises:
        RunError: the outputs set no rate.
    """
    batches = _some_batches(images, recipe)
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
    wrong, count = count_wrong(network, batches, preprocess)
    rate = _first_process_rate(group["lr"] * min(1.0, max(wrong, 0.5) / count / MANY_WRONG))
    print_notice(
        f"learning rate {rate:g}, from the curvature of the outputs and {wrong} wrong answers for "
        f"{count} images (--lr)"
    )
    return rate


def _first_process_rate(rate: float) -> float:
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

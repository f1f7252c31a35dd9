"""A network's embedding, and the features of a task whose images are normalised together."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from neural_similarity.lab.tasks.few_shot.batch_norm import support_first
from neural_similarity.lab.tasks.few_shot.interface import NormStatistics

Embed = Callable[[Tensor], Tensor]


def split_classifier(network: nn.Sequential) -> tuple[nn.Sequential, int]:
    """A network without its linear classifier, and the number of its features.

    Raises:
        ValueError: it does not end in a linear layer.
    """
    classifier = network[-1] if isinstance(network, nn.Sequential) and len(network) else None
    if not isinstance(classifier, nn.Linear):
        raise ValueError(
            "`network` must be a torch.nn.Sequential that ends in a torch.nn.Linear, got a "
            f"{type(network).__name__} that ends in a {type(classifier or network).__name__}"
        )
    return network[:-1], classifier.in_features


def embed_task(
    embed: Embed, statistics: NormStatistics, support: Tensor, query: Tensor
) -> tuple[Tensor, Tensor]:
    """The embeddings of a support set and of queries, normalised by these statistics.

    Both go through the network in one batch, unless queries are normalised by their own statistics.
    """
    if statistics == "transductive":
        return embed(support), embed(query)
    with support_first(len(support)):
        both = embed(torch.cat([support, query]))
    return both[: len(support)], both[len(support) :]


def embed_queries(
    embed: Embed, statistics: NormStatistics, support: Tensor, query: Tensor
) -> Tensor:
    """The queries' part of `embed_task`; the support set is embedded only if it is needed."""
    if statistics == "support":
        return embed_task(embed, statistics, support, query)[1]
    return embed(query)

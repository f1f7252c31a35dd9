"""The embedding of a network, and what it makes of a task whose images are normalised together."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_similarity.fewshot.batch_norm import statistics_of, support_first

Parameters = dict[str, Tensor]


def embedding(network: nn.Sequential) -> tuple[nn.Sequential, int]:
    """A network without its linear classifier, and how many features that has.

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
    network: nn.Module, support: Tensor, query: Tensor, parameters: Parameters | None = None
) -> tuple[Tensor, Tensor]:
    """What `network` makes of a support set and of queries, normalised by its statistics.

    Both go through the network in one batch, unless queries are to be normalised by their own
    statistics.

    Args:
        network: Any module of one input.
        support: Its input for the support set, (n, ...).
        query: Its input for the queries, (q, ...).
        parameters: Tensors by name in place of the network's own.
    """
    if statistics_of(network) == "transductive":
        parts = (functional_call(network, parameters or {}, (x,)) for x in (support, query))
        return next(parts), next(parts)
    with support_first(len(support)):
        both = functional_call(network, parameters or {}, (torch.cat([support, query]),))
    return both[: len(support)], both[len(support) :]


def embed_queries(
    network: nn.Module, support: Tensor, query: Tensor, parameters: Parameters | None = None
) -> Tensor:
    """The second part of `embed_task`, without the first where it is not needed for it."""
    if statistics_of(network) == "support":
        return embed_task(network, support, query, parameters)[1]
    return functional_call(network, parameters or {}, (query,))

"""Methods that compare queries with the support set in a fixed embedding."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.few_shot.interface import Episode, Method, Predict
from neural_similarity.ops import unit_vectors, without_autocast

MATCHING_SCALE = 100.0
"""Factor on cosines before the softmax: 1 in the paper of Vinyals et al., 100 in CloserLookFewShot,
whose results the paper of NSL quotes."""


class Metric(Method):
    """A method that fits no parameters to a support set, with a loss for episodic training.

    `adapt` gets the features (..., n, d) of `at_once` tasks together, and the function that it
    returns gets their queries (..., q, d); a method that cannot do this sets `at_once = 1`.
    """

    at_once = 10

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone

    def loss(self, episode: Episode) -> Tensor:
        return F.cross_entropy(self.scores(episode), episode.query_labels)

    def scores(self, episode: Episode) -> Tensor:
        """Logits (q, ways) of a task of images, embedded in one batch."""
        support, labels, query, _ = self.embed_episode(episode)
        with without_autocast(query):
            return self.adapt(support, labels, episode.ways)(query)


class NearestNeighbour(Metric):
    r"""The class of the support image whose features have the largest cosine with the query's.

    Logits $\max_{i \in c} \cos(f(x), f(x_i))$ over the support images of class c; the baseline of
    Ravi and Larochelle, 2017 (https://openreview.net/forum?id=rJY0-Kcll).
    """

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        members = class_members(labels, ways) > 0

        def predict(query: Tensor) -> Tensor:
            near = cosine_matrix(query, support).unsqueeze(-2)
            return near.masked_fill(~members, -torch.inf).amax(-1)

        return predict


class ProtoNet(Metric):
    r"""Prototypical networks: logits $-\lVert f(x) - \bar f_c \rVert^2$ to each class's mean.

    Snell, Swersky and Zemel, 2017 (https://arxiv.org/abs/1703.05175).
    """

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        prototypes = class_means(support, labels, ways)
        return lambda query: -squared_distances(query, prototypes)


class MatchingNet(Metric):
    """Matching networks: each support image votes by the softmax of its cosine with the query.

    Vinyals et al., 2016 (https://arxiv.org/abs/1606.04080). Logits are logarithms of the votes. A
    `context`, such as `FullContext`, changes the features given the support set.
    """

    def __init__(
        self,
        backbone: nn.Module,
        context: nn.Module | None = None,
        scale: float = MATCHING_SCALE,
    ):
        super().__init__(backbone)
        self.context = context
        self.scale = scale

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        members = class_members(labels, ways).to(support)

        def predict(query: Tensor) -> Tensor:
            keys, asked = (support, query) if self.context is None else self.context(support, query)
            votes = (self.scale * cosine_matrix(asked, keys)).log_softmax(-1).unsqueeze(-2)
            return votes.masked_fill(members == 0, -torch.inf).logsumexp(-1)

        return predict


class FullContext(nn.Module):
    """Full context embeddings: the support set read by an LSTM, queries by one that attends to it.

    Vinyals et al., 2016, App. A; the number of steps, which it leaves open, is 5 here.
    """

    def __init__(self, features: int, steps: int = 5):
        super().__init__()
        self.reader = nn.LSTM(features, features, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(2 * features, features)
        self.steps = steps

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Support (..., n, d) and queries (..., q, d) with their context."""
        lead = support.shape[:-2]
        keys = self._read_support(support.reshape(-1, *support.shape[-2:]))
        asked = self._attend_keys(keys, query.reshape(-1, *query.shape[-2:]))
        return keys.view(*lead, *keys.shape[-2:]), asked.view(*lead, *asked.shape[-2:])

    def _read_support(self, support: Tensor) -> Tensor:
        both = self.reader(support)[0].unflatten(-1, (2, -1))
        return support + both.sum(-2)

    def _attend_keys(self, keys: Tensor, query: Tensor) -> Tensor:
        hidden, state = query, torch.zeros_like(query)
        for _ in range(self.steps):
            read = (hidden @ keys.mT).softmax(-1) @ keys
            joined = torch.cat([query, read], -1).flatten(0, 1)
            states = hidden.flatten(0, 1), state.flatten(0, 1)
            hidden, state = (x.view_as(query) for x in self.cell(joined, states))
            hidden = hidden + query
        return hidden


def cosine_matrix(x: Tensor, y: Tensor) -> Tensor:
    """Cosines (..., n, m) of x (..., n, d) and y (..., m, d)."""
    return unit_vectors(x, -1) @ unit_vectors(y, -1).mT


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances (..., n, m) of x (..., n, d) and y (..., m, d), in one product.

    Both are centred at the mean of y, so that no large numbers cancel.
    """
    middle = y.mean(-2, keepdim=True)
    x, y = x - middle, y - middle
    lengths = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
    return lengths - 2 * (x @ y.mT)


def class_members(labels: Tensor, ways: int) -> Tensor:
    """Which of n images belong to each class: 1 or 0, (ways, n)."""
    return F.one_hot(labels, ways).mT


def class_means(x: Tensor, labels: Tensor, ways: int) -> Tensor:
    """Means (..., ways, d) of x (..., n, d) over the images of each class."""
    members = class_members(labels, ways).to(x)
    return members @ x / members.sum(1, keepdim=True)

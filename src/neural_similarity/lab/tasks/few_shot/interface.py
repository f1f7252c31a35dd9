"""The interface of few-shot methods: `adapt(support, labels, ways) -> predict(query)`."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from neural_similarity.ops import promote_dtype

Predict = Callable[[Tensor], Tensor]
"""Maps query images, or features if the embedding is fixed, to logits (q, ways)."""
NormStatistics = Literal["running", "support", "transductive"]
"""The statistics that normalise queries: of training, of the task's support, or of its queries."""


class Episode(NamedTuple):
    """One task as a method sees it: labelled support images, and queries."""

    support: Tensor
    """Preprocessed images (ways * shots, c, h, w), or their features (ways * shots, d)."""
    support_labels: Tensor
    """int64 (ways * shots,) in 0..ways-1."""
    query: Tensor
    """Images (q, c, h, w), or their features (q, d)."""
    query_labels: Tensor
    """Classes of the queries, int64 (q,)."""

    @property
    def ways(self) -> int:
        return int(self.support_labels.max()) + 1


class Method(nn.Module):
    """A row of Table 6: it learns the classes of a task from a few images of each.

    With `fixed_embedding`, `adapt` and the function that it returns take features of `embed`, which
    an evaluator computes once for every image; otherwise they take preprocessed images.
    """

    backbone: nn.Module
    """The network that embeds images."""
    fixed_embedding: bool = True
    """Whether adapting to a task leaves the embedding as it is."""
    statistics: NormStatistics = "running"
    """The statistics of batch normalisation at test; only "transductive" mixes queries."""
    at_once: int = 1
    """Number of tasks that an evaluator passes to `adapt` together, stacked along a new first
    dimension of support and queries; above 1 only if `adapt` accepts that."""

    def embed(self, images: Tensor) -> Tensor:
        """Features (n, d), float32 or wider, of preprocessed images (n, c, h, w)."""
        return promote_dtype(self.backbone(images).flatten(1))

    def embed_episode(self, episode: Episode) -> Episode:
        """The task with features in place of its images, which are embedded in one batch."""
        both = self.embed(torch.cat([episode.support, episode.query]))
        support, query = both.split([len(episode.support), len(episode.query)])
        return episode._replace(support=support, query=query)

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        """Learn from a support set; return the map from queries (q, ...) to logits (q, ways).

        Args:
            support: images (n, c, h, w), or features (n, d) where the embedding is fixed.
            labels: int64 (n,), the class of each in 0..ways-1.
            ways: number of classes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define adapt")

    def loss(self, episode: Episode) -> Tensor:
        """The scalar that episodic training minimises on a task of images."""
        raise NotImplementedError(f"{type(self).__name__} is trained by classification")

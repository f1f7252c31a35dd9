"""A task of few-shot learning as tensors."""

from typing import NamedTuple

from torch import Tensor


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

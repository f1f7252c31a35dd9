"""A task of few-shot learning as tensors."""

from typing import NamedTuple

from torch import Tensor


class Episode(NamedTuple):
    """What a method sees of one task: labelled support images and queries."""

    support: Tensor
    """Preprocessed images (ways * shots, c, h, w), or their features (ways * shots, d)."""
    support_labels: Tensor
    """int64 (ways * shots,) in 0..ways-1."""
    query: Tensor
    """Images (q, c, h, w), or their features (q, d)."""
    query_labels: Tensor
    """int64 (q,)."""

    @property
    def ways(self) -> int:
        return int(self.support_labels.max()) + 1

"""Scaling vectors to length 1, also in float16 and where a length is zero."""

import torch
from torch import Tensor


def unit_vectors(vectors: Tensor, dim: int) -> Tensor:
    """Vectors along `dim` over their lengths; float16 is computed and returned in float32.

    A vector of length zero stays zero, with a gradient of zero. `F.normalize` divides by its eps
    there: by 0 in float16, and gradients by 1e-12 elsewhere.
    """
    vectors = wide(vectors)
    lengths = vectors.norm(dim=dim, keepdim=True)
    return vectors / lengths.masked_fill(lengths < 1e-12, torch.inf)


def wide(vectors: Tensor) -> Tensor:
    """Vectors in a type that holds their squares and one over their lengths: no float16."""
    return vectors.float() if vectors.dtype == torch.float16 else vectors

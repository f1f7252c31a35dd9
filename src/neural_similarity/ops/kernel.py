"""Static similarity: M folds into the kernel, W' = W M."""

import torch
from torch import Tensor

from neural_similarity.ops.window import promoted, without_autocast


def fold_kernel(weight: Tensor, similarity: Tensor) -> Tensor:
    r"""The kernel whose plain convolution equals the static similarity: $W'_q = \sum_p W_p M_{pq}$.

    Computed in float32 (float64 where an input is that), outside autocast, and returned in
    `weight`'s dtype. Paper, §3.2.

    Args:
        weight: (*lead, *kernel) with K taps in the trailing kernel dimensions.
        similarity: (K,) diagonal or (K, K), indexed M[kernel tap, patch tap].
    """
    taps = similarity.shape[-1]
    with without_autocast(weight):
        m = promoted(similarity)
        kernel = weight.to(torch.promote_types(weight.dtype, m.dtype)).reshape(-1, taps)
        m = m.to(kernel.dtype)
        folded = kernel * m if m.dim() == 1 else kernel @ m
        return folded.reshape(weight.shape).to(weight.dtype)

"""Dynamic diagonal similarity (DNS): every tap of a patch is scaled by its own number."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Diagonal:
    """`columns.Mixing` with m (N, K)."""

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        _scale(patches, m.view(*patches.shape[:-1], 1), out.view(patches.shape))

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        _scale(grad, m.unsqueeze(-1), out)

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor) -> Tensor:
        torch.mul(grad.view(patches.shape), patches, out=scratch.view(patches.shape))
        return scratch.sum(-1)


def _scale(values: Tensor, m: Tensor, out: Tensor) -> None:
    """m · values into `out`; below m's precision as values + (m - 1) · values, rounded once."""
    if values.dtype == m.dtype:
        torch.mul(values, m, out=out)
    else:
        torch.addcmul(values, values, (m - 1).to(values.dtype), out=out)


diagonal_conv2d = trilinear.register("diagonal_conv2d", _Diagonal())
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""

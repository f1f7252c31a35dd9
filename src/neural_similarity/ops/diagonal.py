"""Dynamic diagonal similarity (DNS): every tap of a patch is scaled by its own number."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Diagonal:
    """`columns.Arithmetic` with m (N, b, K)."""

    mirrors = True

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        _scale(patches, m, out.view(patches.shape))

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        _scale(grad, m, out)

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor, blocks: int) -> Tensor:
        torch.mul(grad.view(patches.shape), patches, out=scratch.view(patches.shape))
        return scratch.unflatten(-1, (blocks, -1)).sum(-1).mT


def _scale(values: Tensor, m: Tensor, out: Tensor) -> None:
    """m · values into `out`; below m's precision as values + (m - 1) · values, rounded once."""
    factors = m.mT.reshape(*values.shape[:-1], m.shape[1], 1)
    values, out = (tensor.unflatten(-1, (m.shape[1], -1)) for tensor in (values, out))
    if values.dtype == m.dtype:
        torch.mul(values, factors, out=out)
    else:
        torch.addcmul(values, values, (factors - 1).to(values.dtype), out=out)


diagonal_conv = trilinear.register("diagonal_conv", _Diagonal(), full=False)
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""

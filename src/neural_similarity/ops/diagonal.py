"""Dynamic diagonal similarity (DNS): every tap of a patch is scaled by its own number."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Diagonal:
    """`columns.Mixing` with m (N, K)."""

    def mix(self, patches: Tensor, m: Tensor) -> Tensor:
        columns = torch.empty_like(patches, memory_format=torch.contiguous_format)
        _scale(patches, m.view(*patches.shape[:-1], 1), columns)
        return columns.view(*m.shape, -1)

    def transpose(self, grad: Tensor, m: Tensor) -> Tensor:
        return _scale(grad, m.unsqueeze(-1), torch.empty_like(grad))

    def gradient(self, grad: Tensor, patches: Tensor) -> Tensor:
        products = torch.mul(grad.view(patches.shape), patches)
        sums = products.sum(-1, dtype=torch.promote_types(grad.dtype, torch.float32))
        return sums.view(grad.shape[:2])


def _scale(values: Tensor, m: Tensor, out: Tensor) -> Tensor:
    """m · values into `out`; below m's precision as values + (m - 1) · values, rounded once."""
    if values.dtype == m.dtype:
        return torch.mul(values, m, out=out)
    return torch.addcmul(values, values, (m - 1).to(values.dtype), out=out)


diagonal_conv2d = trilinear.register("diagonal_conv2d", _Diagonal())
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""

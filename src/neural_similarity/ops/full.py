"""Dynamic full similarity (UNS): the taps of a patch are mixed by a K×K matrix."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Full:
    """`columns.Mixing` with m (N, K, K), indexed [position, kernel tap, patch tap]."""

    def mix(self, patches: Tensor, m: Tensor) -> Tensor:
        return _matmul(m, patches.reshape(*m.shape[:2], -1))

    def transpose(self, grad: Tensor, m: Tensor) -> Tensor:
        return _matmul(m.mT, grad)

    def gradient(self, grad: Tensor, patches: Tensor) -> Tensor:
        return torch.bmm(grad, patches.reshape(grad.shape).mT)


def _matmul(m: Tensor, values: Tensor) -> Tensor:
    """m · values; below m's precision as values + (m - I) · values, rounded once."""
    if values.dtype == m.dtype:
        return torch.bmm(m, values)
    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    return torch.baddbmm(values, (m - identity).to(values.dtype), values)


full_conv2d = trilinear.register("full_conv2d", _Full())
"""y_o(p) = Σ_s Σ_c W[o,c,s] Σ_t M_st(p) X[c,t](p). Paper, Eq. 2 and §3.3."""

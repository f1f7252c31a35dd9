"""Dynamic full similarity (UNS): the taps of a patch are mixed by a K×K matrix."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Full:
    """`columns.Mixing` with m (N, K, K), indexed [position, kernel tap, patch tap]."""

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        scratch.view(patches.shape).copy_(patches)
        _multiply(m, scratch, out)

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        _multiply(m.mT, grad, out)

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor) -> Tensor:
        scratch.view(patches.shape).copy_(patches)
        return torch.bmm(grad, scratch.mT)


def _multiply(m: Tensor, values: Tensor, out: Tensor) -> None:
    """m · values into `out`; below m's precision as values + (m - I) · values, rounded once."""
    if values.dtype == m.dtype:
        torch.bmm(m, values, out=out)
    else:
        identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
        torch.baddbmm(values, (m - identity).to(values.dtype), values, out=out)


full_conv2d = trilinear.register("full_conv2d", _Full())
"""y_o(p) = Σ_s Σ_c W[o,c,s] Σ_t M_st(p) X[c,t](p). Paper, Eq. 2 and §3.3."""

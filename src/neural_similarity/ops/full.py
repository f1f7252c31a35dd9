"""Dynamic full similarity (UNS): the taps of a patch are mixed by a K×K matrix."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Full:
    """`columns.Arithmetic` with m (N, b, K, K): [position, block, kernel tap, patch tap]."""

    mirrors = False

    def mix(self, patches: Tensor, m: Tensor, out: Tensor, scratch: Tensor) -> None:
        scratch.view(patches.shape).copy_(patches)
        _multiply(m, scratch, out)

    def transpose(self, grad: Tensor, m: Tensor, out: Tensor) -> None:
        _multiply(m.mT, grad, out)

    def gradient(self, grad: Tensor, patches: Tensor, scratch: Tensor, blocks: int) -> Tensor:
        scratch.view(patches.shape).copy_(patches)
        products = torch.bmm(_by_block(grad, blocks), _by_block(scratch, blocks).mT)
        return products.unflatten(0, (-1, blocks))


def _multiply(m: Tensor, values: Tensor, out: Tensor) -> None:
    """m · values into `out`; below m's precision as values + (m - I) · values, rounded once."""
    blocks = m.shape[1]
    values = _by_block(values, blocks)
    target = out if blocks == 1 else torch.empty_like(values)
    m = m.flatten(0, 1)
    if values.dtype == m.dtype:
        torch.bmm(m, values, out=target)
    else:
        identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
        torch.baddbmm(values, (m - identity).to(values.dtype), values, out=target)
    if blocks > 1:
        out.copy_(target.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2))


def _by_block(values: Tensor, blocks: int) -> Tensor:
    """(N, K, c) as (N·b, K, c/b); a view where there is one block."""
    if blocks == 1:
        return values
    return values.unflatten(2, (blocks, -1)).transpose(1, 2).flatten(0, 1)


full_conv = trilinear.register("full_conv", _Full(), full=True)
"""y_o(p) = Σ_s Σ_c W[o,c,s] Σ_t M_st(p) X[c,t](p). Paper, Eq. 2 and §3.3."""

"""Dynamic similarities: a tap has a factor (diagonal, DNS), or a matrix mixes taps (full, UNS)."""

import torch
from torch import Tensor

from neural_similarity.ops import trilinear


class _Diagonal:
    """`columns.Arithmetic` with m (n, b, K, *out): a bag is one tap."""

    mirrors = True

    def bags(self, patches: Tensor) -> Tensor:
        return patches.unsqueeze(-1)

    def weights(self, m: Tensor) -> Tensor:
        return m.movedim((1, 2), (-1, -2)).unsqueeze(-1)

    def transpose(self, m: Tensor) -> Tensor:
        return m

    def gradient(self, grad: Tensor, patches: Tensor, blocks: int) -> Tensor:
        products = patches.mul_(grad).unflatten(-1, (blocks, -1))
        return (products @ products.new_ones(products.shape[-1])).mT


diagonal_conv = trilinear.register_trilinear("diagonal_conv", _Diagonal(), full=False)
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""


class _Full:
    """`columns.Arithmetic` with m (n, b, K, K, *out): [image, block, kernel tap, patch tap]."""

    mirrors = False

    def bags(self, patches: Tensor) -> Tensor:
        return patches.unsqueeze(1).expand(-1, patches.shape[1], -1)

    def weights(self, m: Tensor) -> Tensor:
        return m.movedim((1, 2, 3), (-2, -3, -1))

    def transpose(self, m: Tensor) -> Tensor:
        return m.transpose(2, 3)

    def gradient(self, grad: Tensor, patches: Tensor, blocks: int) -> Tensor:
        products = torch.bmm(_by_block(grad, blocks), _by_block(patches, blocks).mT)
        return products.unflatten(0, (-1, blocks))


def _by_block(values: Tensor, blocks: int) -> Tensor:
    """(N, K, c) as (N·b, K, c/b); a view where there is one block."""
    if blocks == 1:
        return values
    return values.unflatten(2, (blocks, -1)).transpose(1, 2).flatten(0, 1)


full_conv = trilinear.register_trilinear("full_conv", _Full(), full=True)
"""y_o(p) = Σ_s Σ_c W[o,c,s] Σ_t M_st(p) X[c,t](p). Paper, Eq. 2 and §3.3."""

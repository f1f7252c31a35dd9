"""Dynamic diagonal similarity (DNS): every tap of a patch is scaled by its own number."""

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


diagonal_conv = trilinear.register("diagonal_conv", _Diagonal(), full=False)
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""

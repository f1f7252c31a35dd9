"""How a diagonal and a full M mix taps, for the eager form in `columns.py`."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Arithmetic(Protocol):
    """How M, (n, b, K, *out) or (n, b, K, K, *out), makes columns (N, K, c) of patches.

    Every tap of a column is a weighted sum over a bag of j taps of its patch, given by their
    indices.
    """

    mirrors: bool
    """Whether the data gradient of a convolution is cheaper as one with the mirrored kernel."""

    def bags(self, patches: Tensor) -> Tensor:
        """The bags (N, K, j) of patches (N, K)."""
        ...

    def weights(self, m: Tensor) -> Tensor:
        """View (n, *out, K, b, j) of M: the weights of the bags."""
        ...

    def transpose(self, m: Tensor) -> Tensor:
        """View of M that maps the columns' gradient to the patches' gradient."""
        ...

    def gradient(self, grad: Tensor, patches: Tensor, blocks: int) -> Tensor:
        """Gradient (N, b, *taps) of M in `blocks` blocks, given the columns' gradient.

        Both arguments are contiguous (N, K, c) in the input's dtype; `patches` may be written.
        """
        ...


class Diagonal:
    """`Arithmetic` with m (n, b, K, *out): a bag is one tap."""

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


class Full:
    """`Arithmetic` with m (n, b, K, K, *out): [image, block, kernel tap, patch tap]."""

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

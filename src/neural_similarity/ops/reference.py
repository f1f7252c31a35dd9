"""What each operator means, in one einsum: the oracle of the faster forms, and the exported one."""

import torch
from torch import Tensor, einsum
from torch.nn import functional as F

from neural_similarity.ops.window import Window


def similarity_conv(
    x: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """y[n, o, *out] = Σ_cpq weight[o, c, p] · M[n, b(c), p, q, *out] · patch[n, c, q, *out].

    `similarity` is (n, b, K, *out), diagonal, or (n, b, K, K, *out), M[kernel tap p, patch tap q],
    for b blocks of channels. In its dtype, as the other forms: that of x may not tell it from I.
    """
    m = similarity.to(torch.promote_types(similarity.dtype, x.dtype))
    taken = patches(x, Window(tuple(weight.shape[2:]), stride, padding, dilation)).to(m.dtype)
    kernel = weight.to(m.dtype).flatten(2).unflatten(0, (groups, -1))
    full = m.dim() > taken.dim()
    blocks = m.shape[1]
    if blocks == 1:
        taken = taken.unflatten(1, (groups, -1))
        m = m.squeeze(1)
        equation = "npq...,ngcq...,gocp->ngo..." if full else "np...,ngcp...,gocp->ngo..."
        return einsum(equation, m, taken, kernel).flatten(1, 2).to(x.dtype)
    equation = "nbpq...,nbcq...->nbcp..." if full else "nbp...,nbcp...->nbcp..."
    mixed = einsum(equation, m, taken.unflatten(1, (blocks, -1))).flatten(1, 2)
    y = einsum("ngcp...,gocp->ngo...", mixed.unflatten(1, (groups, -1)), kernel)
    return y.flatten(1, 2).to(x.dtype)


def patches(x: Tensor, window: Window) -> Tensor:
    """(n, c, K, *out): the taps of `x` (n, c, *size) at every position of the window."""
    output = window.output_size(x.shape[2:])
    padded = F.pad(x, [p for p in reversed(window.padding) for _ in range(2)])
    view = padded
    for dim, (k, d, s) in enumerate(
        zip(window.kernel_size, window.dilation, window.stride, strict=True), start=2
    ):
        view = view.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
    dims = len(output)
    return view.flatten(2 + dims).movedim(-1, 2)

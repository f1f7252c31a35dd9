"""The definition of each operator in plain products: oracle of faster forms, and exported form.

Not by einsum, in which torch.export cannot tell that symbolic sizes are not 1.
"""

import torch
from torch import Tensor
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
    for b blocks of channels. It computes in M's dtype, like the other forms: in that of x, M might
    round to I.
    """
    m = similarity.to(torch.promote_types(similarity.dtype, x.dtype))
    taken = extract_patches(x, Window(tuple(weight.shape[2:]), stride, padding, dilation)).to(
        m.dtype
    )
    output, full = taken.shape[3:], m.dim() > taken.dim()
    taken = taken.flatten(3).unflatten(1, (m.shape[1], -1))  # (n, b, c / b, K, positions)
    if full:
        by_position = m.flatten(4).permute(0, 1, 4, 2, 3) @ taken.permute(0, 1, 4, 3, 2)
        mixed = by_position.permute(0, 1, 4, 3, 2)
    else:
        mixed = m.flatten(3).unsqueeze(2) * taken
    kernel = weight.to(m.dtype).flatten(1).unflatten(0, (groups, -1))  # (g, o / g, c / g · K)
    y = kernel @ mixed.flatten(1, 2).unflatten(1, (groups, -1)).flatten(2, 3)
    return y.flatten(1, 2).unflatten(2, output).to(x.dtype)


def extract_patches(x: Tensor, window: Window) -> Tensor:
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

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
    """y[n, o, p] = Σ_cst weight[o, c, s] · M[n, b(c), s, t, p] · patch[n, c, t, p].

    `similarity` is (n, b, K, P), diagonal, or (n, b, K, K, P), M[kernel tap s, patch tap t], for b
    blocks of channels and P positions, row by row. It computes in M's dtype, like the other forms:
    in that of x, M might round to I.
    """
    m = similarity.to(torch.promote_types(similarity.dtype, x.dtype))
    window = Window(tuple(weight.shape[2:]), stride, padding, dilation)
    taken = extract_patches(x, window).to(m.dtype)
    output, full = window.output_size(x.shape[2:]), m.dim() == 5
    taken = taken.unflatten(1, (m.shape[1], -1))  # (n, b, c / b, K, P)
    if full:
        mixed = (m.permute(0, 1, 4, 2, 3) @ taken.permute(0, 1, 4, 3, 2)).permute(0, 1, 4, 3, 2)
    else:
        mixed = m.unsqueeze(2) * taken
    kernel = weight.to(m.dtype).flatten(1).unflatten(0, (groups, -1))  # (g, o / g, c / g · K)
    y = kernel @ mixed.flatten(1, 2).unflatten(1, (groups, -1)).flatten(2, 3)
    return y.flatten(1, 2).unflatten(2, output).to(x.dtype)


def extract_patches(x: Tensor, window: Window) -> Tensor:
    """(n, c, K, P): the taps of `x` (n, c, *size) at every position of the window.

    By slices between constants, and at most five axes: Core ML knows no more.
    """
    taps = [F.pad(x, [p for p in reversed(window.padding) for _ in range(2)])]
    axes = zip(window.kernel_size, window.dilation, window.stride, strict=True)
    for dim, (k, d, s) in enumerate(axes, start=2):
        before = (slice(None),) * dim
        ranges = [slice(d * t, d * (t + 1 - k) or None, s) for t in range(k)]
        taps = [tap[(*before, positions)] for tap in taps for positions in ranges]
    return torch.stack([tap.flatten(2) for tap in taps], 2)

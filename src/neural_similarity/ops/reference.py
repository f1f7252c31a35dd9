"""The definition of each operator in plain products: oracle of faster forms, and exported form.

Not by einsum, in which torch.export cannot tell that symbolic sizes are not 1. Channels come last:
runtimes multiply small matrices M by patches four times faster so than with positions last.
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
    window, blocks = Window(tuple(weight.shape[2:]), stride, padding, dilation), m.shape[1]
    parts, depthwise = max(blocks, groups), weight.shape[1] == 1 and len(weight) == groups
    mixed_apart = blocks if blocks == 1 or depthwise else parts
    patches = extract_patches(x.to(m.dtype), window, mixed_apart)
    if mixed_apart > blocks:
        m = m.repeat_interleave(parts // blocks, 1)
    kernel = weight.to(m.dtype).flatten(2)
    if m.dim() == 5:
        mixed = m.permute(0, 1, 4, 2, 3) @ patches
    else:
        mixed = m.transpose(2, 3).unsqueeze(-1) * patches
    output = window.output_size(x.shape[2:])
    if depthwise:
        return _as_maps(_sum_taps(mixed, kernel.flatten(1)), output).to(x.dtype)
    if parts > mixed_apart:
        mixed = mixed.squeeze(1).unflatten(-1, (parts, -1)).permute(0, 3, 1, 2, 4)
    # (g, o/g, parts/g, c/parts, K) to (parts, K·c/parts, o/g).
    kernel = kernel.unflatten(0, (groups, -1)).unflatten(2, (parts // groups, -1))
    y = mixed.flatten(3) @ kernel.permute(0, 2, 4, 3, 1).flatten(2, 3).flatten(0, 1)
    if parts > groups:
        y = y.unflatten(1, (groups, -1)).sum(2)
    return _as_maps(y, output).to(x.dtype)


def convolve_by_image(x: Tensor, kernels: Tensor, window: Window, groups: int) -> Tensor:
    """The convolution of every image of x with its own kernel of `kernels` (n, o, c/g, *size)."""
    depthwise = kernels.shape[2] == 1 and kernels.shape[1] == groups
    patches, kernels = extract_patches(x, window, 1 if depthwise else groups), kernels.flatten(3)
    if depthwise:
        y = _sum_taps(patches, kernels.flatten(2))
    else:
        # (n, g, o/g, c/g, K) to (n, g, K·c/g, o/g).
        columns = kernels.unflatten(1, (groups, -1)).permute(0, 1, 4, 3, 2).flatten(2, 3)
        y = patches.flatten(3) @ columns
    return _as_maps(y, window.output_size(x.shape[2:]))


def _sum_taps(mixed: Tensor, kernel: Tensor) -> Tensor:
    """(n, parts, P, c/parts) of mixed patches (n, parts, P, K, c/parts), a kernel (*n, c, K)."""
    kernel = kernel.unflatten(-2, (mixed.shape[1], -1)).transpose(-1, -2).unsqueeze(-3)
    return (mixed * kernel).sum(3)


def _as_maps(y: Tensor, output: tuple[int, ...]) -> Tensor:
    """y (n, g, P, o/g) as contiguous (n, o, *out)."""
    return y.transpose(2, 3).flatten(1, 2).contiguous().unflatten(2, output)


def extract_patches(x: Tensor, window: Window, parts: int) -> Tensor:
    """(n, parts, P, K, c/parts): the taps of `x` (n, c, *size) at every position of the window.

    By slices between constants, permutations, and at most five axes: Core ML knows no more.
    """
    padded = F.pad(x, [p for p in reversed(window.padding) for _ in range(2)])
    taps = [padded.permute(0, *range(2, x.dim()), 1).contiguous()]
    axes = zip(window.kernel_size, window.dilation, window.stride, strict=True)
    for dim, (k, d, s) in enumerate(axes, start=1):
        before = (slice(None),) * dim
        ranges = [slice(d * t, d * (t + 1 - k) or None, s) for t in range(k)]
        taps = [tap[(*before, positions)] for tap in taps for positions in ranges]
    together = torch.stack([tap.flatten(1, -2) for tap in taps], 2)
    return together.unflatten(-1, (parts, -1)).permute(0, 3, 1, 2, 4)

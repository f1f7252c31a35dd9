"""What each operator means, in one einsum: the oracle of the faster forms, and the exported one."""

from torch import Tensor, einsum
from torch.nn import functional as F


def similarity_conv2d(
    x: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """y[n, o, h, w] = Σ_cpq weight[o, c, p] · M[n, p, q, h, w] · patch[n, c, q, h, w].

    `similarity` is (n, K, h, w), diagonal, or (n, K, K, h, w), M[kernel tap p, patch tap q].
    """
    kernel_size = (weight.shape[2], weight.shape[3])
    patches = F.unfold(x, kernel_size, dilation, padding, stride)
    patches = patches.unflatten(1, (groups, weight.shape[1], kernel_size[0] * kernel_size[1]))
    patches = patches.unflatten(-1, similarity.shape[-2:])
    kernel = weight.flatten(2).unflatten(0, (groups, -1))
    m = similarity.to(x.dtype)
    equation = "nphw,ngcphw,gocp->ngohw" if m.dim() == 4 else "npqhw,ngcqhw,gocp->ngohw"
    return einsum(equation, m, patches, kernel).flatten(1, 2)

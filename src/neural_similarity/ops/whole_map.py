"""Global similarity: a matrix over all positions of a feature map. Paper, App. B."""

from math import prod
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, einsum
from torch.nn import functional as F

from neural_similarity.ops.blocks import Blocks, check_blocks
from neural_similarity.ops.window import require_tensors, without_autocast

AttentionNormalize = Literal["softmax", "none"]


def global_similarity(
    x: Float[Tensor, "*n c height width"],
    similarity: Float[Tensor, "..."],
    *,
    blocks: Blocks | None = None,
) -> Float[Tensor, "*n c height width"]:
    r"""A feature map whose positions are mixed by M, the same way in every channel.

    $$y_c(p) = \sum_q M_{pq}\, x_c(q)$$

    with p and q over the m = height·width positions, row by row. It is the similarity of a window
    as large as the map, so M has the shapes that `similarity_conv2d` takes, with one output
    position. A convolution of y is the paper's $W_G^\top M_G X_F$ (App. B, Eq. 8-10). A diagonal M
    is a spatial mask; M = I gives x. Computed in the wider of the two dtypes, also under autocast.

    Args:
        x: Feature map, with or without a batch dimension.
        similarity: M; static (m,) diagonal, (m, m), or one (c·m, c·m) over channels and positions;
            one per image (n, m, 1, 1) or (n, m, m, 1, 1) (without n where `x` has none).
        blocks: ("channels", b): each of b consecutive groups of the channels has an M of its own,
            and `similarity` an axis of that length before its positions.

    Returns:
        The map after M_G, of its own shape.

    Raises:
        ValueError: the shapes do not fit, `x` is of integers, or `blocks` are not of channels.
    """
    require_tensors(x=x, similarity=similarity)
    if x.dim() not in (3, 4):
        raise ValueError(f"`x` must be (n, c, h, w) or (c, h, w), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"`x` must have a floating-point dtype, got {x.dtype}")
    static = similarity.dim() <= 2 + (blocks is not None)
    if x.dim() == 3:
        m = similarity if static else similarity[None]
        return global_similarity(x[None], m, blocks=blocks)[0]
    check_global_blocks(blocks, x.shape[1])
    diagonal = _check_similarity(x, similarity, blocks)
    dtype = torch.promote_types(x.dtype, similarity.dtype)
    m = (similarity if static else similarity.flatten(-3)).to(dtype)
    m = m if static or blocks else m.unsqueeze(1)
    groups, entries = blocks[1] if blocks else 1, m.shape[-1]
    rows = prod(x.shape[1:]) // (groups * entries)
    with without_autocast(x):
        values = x.to(dtype).reshape(x.shape[0], groups, rows, entries)
        y = values * m.unsqueeze(-2) if diagonal else values @ m.mT
        return y.reshape(x.shape).to(x.dtype)


def global_attention(
    query: Float[Tensor, "n d height width"],
    key: Float[Tensor, "n d height width"],
    value: Float[Tensor, "n v height width"],
    *,
    normalize: AttentionNormalize = "softmax",
    fused: bool = True,
) -> Float[Tensor, "n v height width"]:
    r"""Dynamic global similarity by self-attention, $M = \mathrm{softmax}(G_1 G_2^\top)$.

    $$y_c(p) = \sum_q M_{pq}\, x_c(q), \qquad M_{pq} = \mathrm{softmax}_q\, G_1(p)^\top G_2(q)$$

    with G1 the query, G2 the key and x the value, unscaled. With the feature map itself as the
    value and `normalize="none"` it is Eq. 11 of the paper (App. B); softmax is what its released
    code and SAGAN (https://arxiv.org/abs/1805.08318) take. Without softmax the product
    $G_1 G_2^\top x$ is taken in the cheaper order: no matrix of positions by positions is made
    where 2·d·v < positions·(d + v).

    Args:
        query: G1 of the map.
        key: G2 of the map.
        value: What M acts on.
        normalize: "softmax" over q, or "none": M = G1 G2ᵀ.
        fused: Use `torch.nn.functional.scaled_dot_product_attention`, whose fused kernels cannot
            be differentiated twice; False writes the softmax out and can.

    Returns:
        The attended values at every position.

    Raises:
        ValueError: the shapes do not fit, or `normalize` is unknown.
    """
    check_normalize(normalize)
    _check_attention(query, key, value)
    positions, d, v = prod(query.shape[2:]), query.shape[1], value.shape[1]
    if normalize == "softmax" and fused:
        q, k, v = (t.flatten(2).mT.unsqueeze(1).contiguous() for t in (query, key, value))
        y = F.scaled_dot_product_attention(q, k, v, scale=1.0).squeeze(1).mT
    elif normalize == "none" and 2 * d * v < positions * (d + v):
        moments = value.flatten(2) @ key.flatten(2).mT
        y = moments @ query.flatten(2)
    else:
        y = value.flatten(2) @ attention_matrix(query, key, normalize=normalize).mT
    return y.unflatten(2, query.shape[2:])


def attention_matrix(
    query: Float[Tensor, "n d height width"],
    key: Float[Tensor, "n d height width"],
    *,
    normalize: AttentionNormalize = "softmax",
) -> Float[Tensor, "n p q"]:
    """M of `global_attention`, M[position, position that it attends to]."""
    check_normalize(normalize)
    logits = einsum("ndp,ndq->npq", query.flatten(2), key.flatten(2))
    return logits.softmax(-1) if normalize == "softmax" else logits


def check_normalize(normalize: str) -> None:
    """Raise a `ValueError` unless the value is one of `AttentionNormalize`."""
    if normalize not in get_args(AttentionNormalize):
        raise ValueError(f'`normalize` must be "softmax" or "none", got {normalize!r}')


def check_global_blocks(blocks: Blocks | None, channels: int) -> None:
    """Raise a `ValueError` if `channels` cannot be split into such blocks."""
    check_blocks(blocks, channels, channels, 1)
    if blocks is not None and blocks[0] == "filters":
        raise ValueError('`blocks` of a global similarity must be of "channels", got "filters"')


def _check_similarity(x: Tensor, similarity: Tensor, blocks: Blocks | None) -> bool:
    """Whether M is diagonal; an error unless it fits."""
    (n, c), m = x.shape[:2], prod(x.shape[2:])
    lead = () if blocks is None else (blocks[1],)
    diagonal = [(*lead, m), (n, *lead, m, 1, 1)]
    full = [(*lead, m, m), (n, *lead, m, m, 1, 1), *([] if lead else [(c * m, c * m)])]
    # Shapes of another length are left out, since comparing them would bind n while exporting.
    if any(similarity.shape == s for s in diagonal if len(s) == similarity.dim()):
        return True
    if any(similarity.shape == s for s in full if len(s) == similarity.dim()):
        return False
    shapes = ", ".join(map(str, diagonal + full))
    raise ValueError(
        f"`similarity` must be one of {shapes} for a map {tuple(x.shape)}, "
        f"got {tuple(similarity.shape)}"
    )


def _check_attention(query: Tensor, key: Tensor, value: Tensor) -> None:
    require_tensors(query=query, key=key, value=value)
    maps = query.dim() == value.dim() == 4 and query.shape == key.shape
    if not maps or value.shape[0] != query.shape[0] or value.shape[2:] != query.shape[2:]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise ValueError(
            "`query`, `key` and `value` must be (n, d, h, w), (n, d, h, w), (n, v, h, w), "
            f"got {shapes}"
        )

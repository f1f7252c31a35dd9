"""Layers whose similarity acts on a whole feature map: M_G in the paper, App. B."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.layer import fx_leaf
from neural_similarity.nn.similarity import StaticSimilarity
from neural_similarity.nn.text import Similarity, SimilarityName, required_similarity
from neural_similarity.ops import (
    attention_matrix,
    global_attention,
    global_similarity,
    require_tensors,
)
from neural_similarity.ops.whole_map import (
    AttentionNormalize,
    check_global_blocks,
    check_normalize,
)


class GlobalSimilarity(nn.Module):
    r"""A learned similarity of all positions of a feature map, the same in every channel.

    $$y_c = M_G\, x_c$$

    with the map's m = height·width positions in a vector. Before a convolution, the two
    compute $W_G^\top M_G X_F$ (App. B, Eq. 8-10). M_G is the similarity of a window as
    large as the map: static or dynamic, of any structure, also of blocks of channels or, not shared
    at all, `ns.Unstructured()`. Diagonal, it is a spatial mask. It starts at the identity, where
    y = x. Unlike the similarity of a convolution it does not fold, so `ns.fold` leaves it.

    Args:
        channels: Channels of the map.
        size: Height and width of the map; no other size is accepted.
        similarity: A name or spec as in `ns.Conv2d`. Full static matrices have m² parameters.
            Dynamic ones are predicted from the whole map, one M_G per image.
        device: Device of the parameters.
        dtype: Type of the parameters.

    Shape:
        (n, channels, *size) or (channels, *size) to the same.

    Raises:
        ValueError: `similarity` is neither a name nor a spec, or has blocks of filters; or a map
            has another size.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        similarity: Similarity | SimilarityName = "static-diagonal",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if channels < 1 or len(size) != 2 or min(size) < 1:
            raise ValueError(
                "`channels` and the two numbers of `size` must be at least 1, "
                f"got {channels}, {size}"
            )
        self.geometry = Geometry(channels, channels, tuple(size), (1, 1), (0, 0), (1, 1))
        module = required_similarity(similarity).build(self.geometry)
        check_global_blocks(module.structure.blocks, channels)
        self.similarity = module.to(device=device, dtype=dtype)

    def matrix(self, x: Float[Tensor, "n c height width"]) -> Float[Tensor, "..."]:
        """M_G as `ns.functional.global_similarity` takes it, in float32 at least."""
        if isinstance(self.similarity, StaticSimilarity):
            return self.similarity.matrix()
        return self.similarity.matrix(x)

    @fx_leaf
    def forward(
        self, input: Float[Tensor, "*n c height width"]
    ) -> Float[Tensor, "*n c height width"]:
        """`input` with its positions mixed by M_G."""
        expected = (self.geometry.in_channels, *self.geometry.kernel_size)
        if input.dim() not in (3, 4) or tuple(input.shape[-3:]) != expected:
            raise ValueError(
                f"`input` must be a map {expected}, batched or not, got {tuple(input.shape)}"
            )
        if input.dim() == 3:
            return self.forward(input[None])[0]
        blocks = self.similarity.structure.blocks
        return global_similarity(input, self.matrix(input), blocks=blocks)

    def extra_repr(self) -> str:
        return f"{self.geometry.in_channels}, {self.geometry.kernel_size}"


class SelfAttention(nn.Module):
    r"""Self-attention, a dynamic global similarity of any size of map.

    $$y = x + \text{gain} \cdot V_2 * (M_G(x)\, (V_1 * x)), \qquad
      M_G(x) = \mathrm{softmax}\big(G_1(x)\, G_2(x)^\top\big)$$

    with 1×1 convolutions without bias G1, G2 (`query`, `key`), V1 (`value`) and V2 (`output`, the
    identity unless `value_channels` differ from `channels`), and one `gain` that starts at 0, where
    y = x. Paper, App. B, Eq. 11, in the form of SAGAN
    (https://arxiv.org/abs/1805.08318) that its released code has. That code puts a ReLU after G1;
    this layer does not, as in both papers.

    Args:
        channels: Channels of the map.
        inner_channels: Channels of G1 and G2; by default an eighth of `channels`, at least 1.
        value_channels: Channels of V1; by default `channels`.
        normalize: "softmax", or "none": M_G = G1 G2ᵀ as the paper writes it, without a matrix of
            positions by positions where that is cheaper.
        fused: See `ns.functional.global_attention`; False for second derivatives.
        convolution: Makes the 1×1 convolutions, with the arguments of `torch.nn.Conv2d`:
            `ns.SphereConv2d` in a SphereNet.
        device: Device of the parameters.
        dtype: Type of the parameters.

    Shape:
        (n, channels, height, width) or (channels, height, width) to the same.

    Raises:
        ValueError: a number of channels is below 1, or `normalize` is unknown.
    """

    def __init__(
        self,
        channels: int,
        inner_channels: int | None = None,
        value_channels: int | None = None,
        *,
        normalize: AttentionNormalize = "softmax",
        fused: bool = True,
        convolution: Callable[..., nn.Conv2d] = nn.Conv2d,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_normalize(normalize)
        inner = max(1, channels // 8) if inner_channels is None else inner_channels
        values = channels if value_channels is None else value_channels
        if min(channels, inner, values) < 1:
            raise ValueError(
                "`channels`, `inner_channels` and `value_channels` must be at least 1, "
                f"got {channels}, {inner}, {values}"
            )

        def pointwise(source: int, target: int) -> nn.Conv2d:
            return convolution(source, target, 1, bias=False, device=device, dtype=dtype)

        self.normalize: AttentionNormalize = normalize
        self.fused = fused
        self.query = pointwise(channels, inner)
        self.key = pointwise(channels, inner)
        self.value = pointwise(channels, values)
        self.output = nn.Identity() if values == channels else pointwise(values, channels)
        self.gain = nn.Parameter(torch.zeros((), device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Reset the gain, so that M = I again; the convolutions reset themselves."""
        nn.init.zeros_(self.gain)

    def matrix(self, x: Float[Tensor, "n c height width"]) -> Float[Tensor, "n p q"]:
        """M_G, M[position, position that it attends to].

        Raises:
            ValueError: `x` is not a batch of maps.
        """
        require_tensors(x=x)
        if x.dim() != 4:
            raise ValueError(f"`x` must be (n, c, height, width), got {tuple(x.shape)}")
        return attention_matrix(self.query(x), self.key(x), normalize=self.normalize)

    @fx_leaf
    def forward(
        self, input: Float[Tensor, "*n c height width"]
    ) -> Float[Tensor, "*n c height width"]:
        """`input` plus the gain times what its positions attend to."""
        if input.dim() == 3:
            return self.forward(input[None])[0]
        attended = global_attention(
            self.query(input), self.key(input), self.value(input),
            normalize=self.normalize, fused=self.fused,
        )  # fmt: skip
        return input + self.gain * self.output(attended)

    def extra_repr(self) -> str:
        return f"normalize={self.normalize}" + ("" if self.fused else ", fused=False")

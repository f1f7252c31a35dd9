"""`nn.Conv2d` with a similarity."""

from copy import deepcopy
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.nn.geometry import Geometry, PaddingMode
from neural_similarity.nn.similarity import StaticSimilarity
from neural_similarity.nn.text import Similarity, parse_similarity


class Conv2d(nn.Conv2d):
    r"""`torch.nn.Conv2d` with a learned bilinear similarity between kernel and patch.

    $$y_o(p) = \sum_c W_{oc}^\top M(p)\, X_c(p) + b_o$$

    M is K×K for K = kh·kw taps, shared by all channels and kernels: one learned matrix (static) or
    one predicted from the input at every position (dynamic). It starts at the identity, where the
    layer equals `torch.nn.Conv2d`. Paper (https://arxiv.org/abs/1910.13003): §3, Eq. 1-2.

    Parameters `weight` and `bias` are `torch.nn.Conv2d`'s own, so that its checkpoints load with
    only `similarity.*` missing. Cost: a static M none once folded (`fuse`); a dynamic one its
    predictor and K·c (diagonal) or K²·c (full) multiplications per position.

    Args:
        in_channels: Channels of the input.
        out_channels: Kernels.
        kernel_size: Taps along each dimension.
        stride: Step of the window.
        padding: Amount on both sides, "same" or "valid".
        dilation: Distance between taps.
        groups: Channel groups.
        bias: Whether to add one.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Of the parameters.
        dtype: Of the parameters.
        similarity: None (plain), a name ("static-diagonal", "static-full", "dynamic-diagonal",
            "dynamic-full"), an `ns.Static` or `ns.Dynamic`, or a module called with (layer, x).

    Shape:
        (n, c, height, width) or (c, height, width) to (n, o, h, w) or (o, h, w).

    Raises:
        ValueError: `similarity` is not one of these.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: Similarity | nn.Module | str | None = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.similarity = build_similarity(similarity, self)

    def forward(self, input: Float[Tensor, "*n c height width"]) -> Float[Tensor, "*n o h w"]:
        """The convolution of `input` with M between kernel and patch."""
        if self.similarity is None:
            return super().forward(input)
        return self.similarity(self, input)

    def fuse(self) -> nn.Conv2d:
        """A `torch.nn.Conv2d` that computes the same; the layer itself where M is dynamic.

        timm's `reparameterize_model` calls it.
        """
        if self.similarity is not None and not isinstance(self.similarity, StaticSimilarity):
            return self
        return strip(deepcopy(self), fold=True)


def strip(layer: Conv2d, *, fold: bool) -> nn.Conv2d:
    """`layer` made a `torch.nn.Conv2d` in place, with its static similarity folded in or dropped.

    Parameters, hooks and references to the layer stay.
    """
    if fold and isinstance(layer.similarity, StaticSimilarity):
        with torch.no_grad():
            folded = layer.similarity.fold(layer.weight)
        layer.weight = nn.Parameter(folded, layer.weight.requires_grad)
    del layer.similarity
    layer.__class__ = nn.Conv2d  # pyright: ignore[reportAttributeAccessIssue]
    return layer


def equip(layer: nn.Conv2d, similarity: Similarity | str) -> Conv2d:
    """`layer` made an `ns.Conv2d` in place: `strip` undone."""
    module = build_similarity(similarity, layer)
    layer.__class__ = Conv2d
    layer = cast(Conv2d, layer)
    layer.similarity = module and module.train(layer.training)
    return layer


def geometry_of(layer: nn.Conv2d) -> Geometry:
    """What a similarity needs to know of a convolution."""
    return Geometry(
        layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride,
        layer.padding, layer.dilation, layer.groups, cast(PaddingMode, layer.padding_mode),
    )  # fmt: skip


def build_similarity(
    similarity: Similarity | nn.Module | str | None, layer: nn.Conv2d
) -> nn.Module | None:
    """The similarity module of a layer, on its device and in its dtype."""
    if isinstance(similarity, str):
        similarity = parse_similarity(similarity)
    if similarity is None or isinstance(similarity, nn.Module):
        return similarity
    if not isinstance(similarity, Similarity):
        raise ValueError(
            "`similarity` must be None, a name, an ns.Static or ns.Dynamic, or a module, "
            f"got {similarity!r}"
        )
    module = similarity.build(geometry_of(layer))
    return module.to(device=layer.weight.device, dtype=layer.weight.dtype)

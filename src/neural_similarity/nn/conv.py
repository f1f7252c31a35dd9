"""torch's convolutions with a similarity."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from neural_similarity.nn.geometry import Geometry, PaddingMode, convolution_geometry
from neural_similarity.nn.layer import Plain, SimilarityLayer, fx_leaf, register
from neural_similarity.nn.linear import Kernel
from neural_similarity.nn.own_forward import extended_class
from neural_similarity.nn.similarity import DynamicSimilarity, StaticSimilarity
from neural_similarity.nn.text import Similarity, SimilarityName

Sizes = int | tuple[int, ...]


class _Convolution(SimilarityLayer[Plain]):
    """Everything in `Conv1d`, `Conv2d` and `Conv3d` but the torch class that they extend."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: Similarity | SimilarityName | nn.Module | None = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # pyright: ignore[reportCallIssue]  # fmt: skip
        self.with_similarity(similarity)

    @classmethod
    def extended(cls, subclass: type[nn.Module]) -> type[SimilarityLayer]:
        """The class for a subclass of torch's convolution."""
        return extended_class(cls, subclass)

    def geometry(self) -> Geometry:
        return convolution_geometry(cast(_ConvNd, self))

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        """The convolution of `input`, batched or not, with M between kernel and patch."""
        similarity = self.similarity
        if similarity is None:
            return super().forward(input)
        return similarity(self, input)

    def static_forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """torch's convolution with `kernel`."""
        layer = cast(_ConvNd, self)
        return layer._conv_forward(x, kernel, layer.bias)

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The convolution with a predicted M."""
        layer = cast(_ConvNd, self)
        weight = layer.weight
        _check_unchanged(layer, weight, similarity.geometry)
        return similarity.convolve_maps(x, weight, layer.bias)


def _check_unchanged(layer: _ConvNd, weight: Tensor, built: Geometry) -> None:
    """Check that window and channels are still those that the predictor was built for."""
    inner = built.in_channels // built.groups
    if weight.shape[1:] == (inner, *built.kernel_size) and _window_options(
        layer
    ) == _window_options(built):
        return
    present = convolution_geometry(layer)
    names = "groups", "in_channels", "kernel_size", "stride", "padding", "dilation", "padding_mode"
    for name in names:
        now, before = getattr(present, name), getattr(built, name)
        if now != before:
            raise ValueError(
                f"`{name}` must stay {before!r}, for which the layer's predictor was built, got "
                f"{now!r}; change it before the layer is converted"
            )


def _window_options(of: Any) -> tuple[Any, ...]:
    return of.stride, of.padding, of.dilation, of.padding_mode, of.groups


@register
class Conv2d(_Convolution[nn.Conv2d], nn.Conv2d):
    r"""`torch.nn.Conv2d` with a learned bilinear similarity between kernel and patch.

    $$y_o(p) = \sum_c W_{oc}^\top M(p)\, X_c(p) + b_o$$

    M is K×K for K = kh·kw taps, shared by all channels and kernels: one learned matrix (static) or
    one predicted from the input at every position (dynamic). It starts at the identity, where the
    layer equals `torch.nn.Conv2d`. Paper (https://arxiv.org/abs/1910.13003): §3, Eq. 1-2.

    Parameters `weight` and `bias` are `torch.nn.Conv2d`'s own, so that its checkpoints load with
    only `similarity.*` missing. Cost: none for a static M once it is folded (`fuse`); for a dynamic
    one its predictor and K·c (diagonal) or K²·c (full) multiplications per position.

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
        device: Device of the parameters.
        dtype: Type of the parameters.
        similarity: None (plain), a name ("static-diagonal", "static-full", "dynamic-diagonal",
            "dynamic-full"), an `ns.Static` or `ns.Dynamic`, or a module called with (layer, x).

    Shape:
        (n, c, height, width) or (c, height, width) to (n, o, h, w) or (o, h, w).

    Raises:
        ValueError: `similarity` is not one of these; when called with a dynamic one, the input is
            none of these, or stride, padding, dilation or groups have changed since it was built.
    """

    plain = nn.Conv2d


@register
class Conv1d(_Convolution[nn.Conv1d], nn.Conv1d):
    """`torch.nn.Conv1d` with a similarity, see `Conv2d`; K = k taps.

    Shape:
        (n, c, length) or (c, length) to (n, o, l) or (o, l).
    """

    plain = nn.Conv1d


@register
class Conv3d(_Convolution[nn.Conv3d], nn.Conv3d):
    """`torch.nn.Conv3d` with a similarity, see `Conv2d`; K = kd·kh·kw taps.

    Shape:
        (n, c, depth, height, width) or (c, depth, height, width) to (n, o, d, h, w) or
        (o, d, h, w).
    """

    plain = nn.Conv3d


@register
class ConvTranspose2d(SimilarityLayer[nn.ConvTranspose2d], nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with a static similarity, folded into its kernel: W' = W M.

    M is K×K, shared by all channels. Takes `torch.nn.ConvTranspose2d`'s arguments and `similarity`.

    Shape:
        (n, c, height, width) or (c, height, width) to (n, o, h, w) or (o, h, w).

    Raises:
        ValueError: the similarity is dynamic, or not shared by all channels.
    """

    plain = nn.ConvTranspose2d

    def __init__(
        self,
        *args: Any,
        similarity: Similarity | SimilarityName | nn.Module | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.with_similarity(similarity)

    def geometry(self) -> Geometry:
        return convolution_geometry(cast(_ConvNd, self))

    def build_similarity(self, similarity: Similarity | nn.Module | None) -> nn.Module | None:
        """A static similarity with one M for all channels."""
        module = super().build_similarity(similarity)
        shared = (
            isinstance(module, StaticSimilarity)
            and module.structure.blocks is None
            and module.matrix().shape[-1] == module.geometry.taps
        )
        if module is not None and not shared:
            raise ValueError(
                "`similarity` of a transposed convolution must be static, with one matrix for all "
                f"channels, got {similarity!r}"
            )
        return module

    @fx_leaf
    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution of `input` with M in the kernel."""
        if self.similarity is None:
            return super().forward(input, output_size)
        return self.static_forward(input, self.similarity(Kernel(self.weight), input), output_size)

    def static_forward(
        self, x: Tensor, kernel: Tensor, output_size: list[int] | None = None
    ) -> Tensor:
        """torch's transposed convolution with `kernel`."""
        now = convolution_geometry(cast(_ConvNd, self))
        padding = cast(Any, now.padding)
        extra = self._output_padding(
            x, output_size, list(now.stride), list(padding), list(now.kernel_size), 2,
            list(now.dilation),
        )  # fmt: skip
        return F.conv_transpose2d(
            x, kernel, self.bias, now.stride, padding, extra, now.groups, now.dilation
        )

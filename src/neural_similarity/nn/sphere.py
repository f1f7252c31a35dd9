"""Hyperspherical layers: responses to the angle between kernel and patch, not to their lengths."""

from collections.abc import Iterable
from math import log
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neural_similarity.choices import require_flag
from neural_similarity.nn.geometry import PaddingMode, convolution_geometry
from neural_similarity.nn.layer import fx_leaf
from neural_similarity.nn.modes import check_module
from neural_similarity.ops import sphere_conv2d
from neural_similarity.ops.sphere import Angle, Normalize, check_options
from neural_similarity.ops.window import promote_dtype, unit_vectors, without_autocast


class SphereConv2d(nn.Conv2d):
    r"""`torch.nn.Conv2d` that responds to the angle θ between kernel and patch, $y = g(\theta)+b$.

    g is in [-1, 1]: "cosine" cos θ; "linear" 1 - 2θ/π; "sigmoid" tanh((π/2 - θ)/(2k)) /
    tanh(π/(4k)). See `ns.functional.sphere_conv2d` for the formula, with ε inside both norms, and
    for gradients and precision. Deep Hyperspherical Learning (https://arxiv.org/abs/1711.03189).

    The cosine is a dynamic diagonal similarity that is not learned: M = I/‖X‖ on the kernels
    W/‖W‖. `weight` and `bias` are `torch.nn.Conv2d`'s own, so that its checkpoints load.

    Args:
        in_channels: Channels of the input.
        out_channels: Kernels.
        kernel_size: Taps along each dimension.
        stride: Step of the window.
        padding: Amount on both sides, "same" or "valid".
        dilation: Distance between taps.
        groups: Channel groups; the patch norm is each group's own.
        bias: Whether to add a bias to g(θ).
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Device of the parameters.
        dtype: Type of the parameters.
        angle: g.
        k: Width of the sigmoid, positive.
        learn_k: Learn k, one number, as k = exp(`log_k`), which is positive for every `log_k`.
        normalize: "both", or "input" to divide by the patch norm alone (cosine only).
        eps: Added to the squared norms, positive.

    Shape:
        (n, c, height, width) or (c, height, width) to (n, o, h, w) or (o, h, w).

    Raises:
        ValueError: an option is unknown or does not fit the others.
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
        angle: Angle = "cosine",
        k: float = 0.3,
        learn_k: bool = False,
        normalize: Normalize = "both",
        eps: float = 1e-4,
    ):
        check_options(angle, normalize, k, eps)
        if learn_k and angle != "sigmoid":
            raise ValueError(f'`learn_k` needs `angle` "sigmoid", got {angle!r}')
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.angle: Angle = angle
        self.normalize: Normalize = normalize
        self.eps = eps
        self.fixed_k = k
        start = torch.tensor(log(k), device=device, dtype=dtype)
        self.log_k = nn.Parameter(start) if learn_k else None

    def reset_parameters(self) -> None:
        """Reset kernel and bias as torch does, and a learned width to its start."""
        super().reset_parameters()
        if getattr(self, "log_k", None) is not None:  # torch's constructor calls this first
            nn.init.constant_(cast(nn.Parameter, self.log_k), log(self.fixed_k))

    @property
    def k(self) -> float | Tensor:
        """Width of the sigmoid, learned or fixed."""
        return self.fixed_k if self.log_k is None else promote_dtype(self.log_k).exp()

    @fx_leaf
    def forward(self, input: Float[Tensor, "*n c height width"]) -> Float[Tensor, "*n o h w"]:
        """g of the angle between every kernel and every patch of `input`."""
        geometry = convolution_geometry(self)
        return sphere_conv2d(
            geometry.pad_input(input), self.weight, self.bias, *geometry.window[1:], self.groups,
            angle=self.angle, k=self.k, normalize=self.normalize, eps=self.eps,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The convolution's fields, and the options that differ from the defaults."""
        text = f"{super().extra_repr()}, angle={self.angle}"
        if self.angle == "sigmoid":
            text += f", k={self.fixed_k if self.log_k is None else 'learned'}"
        return text if self.normalize == "both" else f"{text}, normalize={self.normalize}"


def orthogonality(
    layers: nn.Module | Iterable[nn.Module], *, unit: bool = True
) -> Float[Tensor, ""]:
    r"""A penalty: how far the kernels of hyperspherical convolutions are from orthogonal.

    $$\sum_{\text{layers}} \big\|\hat W \hat W^\top - I\big\|_F^2, \qquad \hat w = w / \|w\|$$

    where each row of W is one kernel, C·K entries. Kernels of different groups see different
    channels and are orthogonal anyway. In float32 at least. Adding it to the loss keeps kernels at
    different angles. Deep Hyperspherical Learning; its released code
    (https://github.com/wy1iu/SphereNet) adds 1e-4 times the penalty with `unit=False`.

    Args:
        layers: A network, or some modules; every `SphereConv2d` in them counts once.
        unit: Compare kernels by direction alone; False takes W as it is, which pulls the lengths
            towards 1 as well.

    Returns:
        The penalty, a scalar to add to the loss.

    Raises:
        ValueError: `layers` holds something that is not a module, or no `SphereConv2d`.
    """
    require_flag("unit", unit)
    if not isinstance(layers, Iterable) and not isinstance(layers, nn.Module):
        raise ValueError(f"`layers` must be a module or some of them, got {layers!r}")
    roots = [layers] if isinstance(layers, nn.Module) else list(layers)
    for root in roots:
        check_module(root, "layers")
    modules = {module: None for root in roots for module in root.modules()}
    penalties = [_gram_error(m, unit) for m in modules if isinstance(m, SphereConv2d)]
    if not penalties:
        raise ValueError("`layers` must hold an ns.SphereConv2d, got none")
    return torch.stack(penalties).sum()


def _gram_error(layer: SphereConv2d, unit: bool) -> Tensor:
    with without_autocast(layer.weight):
        kernels = promote_dtype(layer.weight).flatten(1)
        kernels = unit_vectors(kernels, 1) if unit else kernels
        kernels = kernels.unflatten(0, (layer.groups, -1))
        identity = torch.eye(kernels.shape[1], dtype=kernels.dtype, device=kernels.device)
        return (kernels @ kernels.mT - identity).square().sum()

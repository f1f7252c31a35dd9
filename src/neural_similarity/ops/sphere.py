"""Hyperspherical convolution: functions of the angle between kernel and patch."""

from collections.abc import Sequence
from math import pi, tanh
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.choices import require_known, require_positive
from neural_similarity.ops.pointwise import patch_factors, scale_maps, takes_maps
from neural_similarity.ops.pointwise_torch import patch_norms
from neural_similarity.ops.window import (
    CONVOLUTIONS,
    autocast_dtype,
    make_window,
    promote_dtype,
    require_tensors,
    without_autocast,
)

Angle = Literal["cosine", "linear", "sigmoid"]
Normalize = Literal["both", "input"]
_ANGLES: tuple[str, ...] = get_args(Angle)
_NORMALIZE: tuple[str, ...] = get_args(Normalize)

_FITS = 6e4
"""Less than float16's largest number, by more than a kernel's rounding."""
_EDGE = 1e-6
"""Cosines are kept this far inside (-1, 1), where the angle's derivative is finite."""


def patch_norm(
    x: Float[Tensor, "*n_c_size"],
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    eps: float = 1e-4,
) -> Float[Tensor, "*n_groups_out"]:
    r"""Norm of every patch, $\sqrt{\sum X^2 + \varepsilon}$, over each group's channels and taps.

    It sums over channels first, then over taps: one pass over `x` and a one-channel convolution, in
    float32 (float64 for float64; on a GPU in TF32 unless `torch.backends.cudnn.allow_tf32` is off).
    At a zero patch it is √eps and its gradient is zero.

    Returns:
        The norm of every patch.

    Raises:
        ValueError: `eps` is not positive, `groups` does not divide the channels, or `x` has other
            dimensions or holds integers.
    """
    require_positive("eps", eps)
    _check_maps(x, len(kernel_size), groups)
    return patch_norms(x, kernel_size, (stride, padding, dilation, groups), eps)


def _check_maps(x: Tensor, dims: int, groups: int) -> None:
    require_tensors(x=x)
    channels = -dims - 1
    if x.dim() not in (dims + 1, dims + 2) or not x.is_floating_point():
        raise ValueError(
            f"`x` must be floating point numbers (n, c, *size) or (c, *size) of {dims} sizes, got "
            f"{x.dtype} {tuple(x.shape)}"
        )
    if not isinstance(groups, int) or groups < 1 or x.shape[channels] % groups:
        raise ValueError(f"`groups` must divide the {x.shape[channels]} channels, got {groups}")


def sphere_conv2d(
    x: Float[Tensor, "*n c height width"],
    weight: Float[Tensor, "o c_per_group kh kw"],
    bias: Float[Tensor, " o"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    angle: Angle = "cosine",
    k: float | Tensor = 0.3,
    normalize: Normalize = "both",
    eps: float = 1e-4,
) -> Float[Tensor, "*n o h w"]:
    r"""Convolution that responds to the angle θ between kernel and patch only, $y = g(\theta)$.

    $$\cos\theta = \frac{W^\top X}{\sqrt{\|W\|^2 + \varepsilon}\,\sqrt{\|X\|^2 + \varepsilon}}$$

    with g: "cosine" cos θ; "linear" 1 - 2θ/π; "sigmoid" tanh((π/2 - θ)/(2k)) / tanh(π/(4k)), all
    in [-1, 1]. Zero patches give θ = π/2; gradients are finite there and at aligned vectors. Angles
    come from float32 cosines (float64 for float64 input), also under autocast: near ±1 the angle
    of a bf16 cosine is off by ten times its rounding. Liu et al., Deep Hyperspherical Learning
    (https://arxiv.org/abs/1711.03189), Eq. 2-4; the predictors of Neural Similarity Learning use
    it (§3.3.1, App. A).

    Args:
        x: Input.
        weight: Kernel, as in `torch.nn.functional.conv2d`.
        bias: Added to g(θ).
        stride: Step of the window.
        padding: Zeros on both sides, or "same" or "valid".
        dilation: Distance between taps.
        groups: Number of channel groups.
        angle: g.
        k: Width of the sigmoid, positive; a tensor may be learned.
        normalize: "both", or "input" to divide by the patch norm alone (cosine only).
        eps: Added to the squared norms, positive.

    Returns:
        The convolution's output, of normalised patches and kernels.

    Raises:
        ValueError: an option is unknown or does not fit the others, or `x` or `bias` has another
            shape.
    """
    check_options(angle, normalize, k, eps)
    require_tensors(weight=weight, **({} if bias is None else {"bias": bias}))
    _check_maps(x, weight.dim() - 2, groups)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"`bias` must be ({len(weight)},), got {tuple(bias.shape)}")
    y = sphere_conv(
        x, weight, stride, padding, dilation, groups, angle=angle, k=k, normalize=normalize, eps=eps
    )
    return y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * (weight.dim() - 2))


def sphere_conv(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    angle: Angle = "cosine",
    k: float | Tensor = 0.3,
    normalize: Normalize = "both",
    eps: float = 1e-4,
    factor: float = 1.0,
    rectified: bool = False,
) -> Tensor:
    """`sphere_conv2d` over the dimensions of `weight`, of arguments that are checked already.

    Cosines are multiplied by `factor` in float32: multiplying the kernel could overflow float16.
    `rectified` takes the ReLU of the result.
    """
    geometry = stride, padding, dilation, groups
    if angle == "cosine":
        kernel = weight if normalize == "input" else _unit_kernels(weight, eps)
        return _cosine_convolution(x, kernel, geometry, eps, factor, rectified)
    with without_autocast(x):
        kernel = _unit_kernels(promote_dtype(weight), eps)
        cosine = _cosine_convolution(promote_dtype(x), kernel, geometry, eps, factor)
        theta = cosine.clamp(-1 + _EDGE, 1 - _EDGE).acos()
    y = _of_angle(theta, angle, k).to(autocast_dtype(x))
    return F.relu(y) if rectified else y


def _cosine_convolution(
    x: Tensor, kernel: Tensor, geometry: tuple, eps: float, factor: float, rectified: bool = False
) -> Tensor:
    """The convolution with `kernel`, times `factor` over the norm of every patch."""
    if x.dim() < kernel.dim():
        return _cosine_convolution(x[None], kernel, geometry, eps, factor, rectified)[0]
    factors = _norm_factors(x, kernel.shape[2:], geometry, eps, factor)
    if autocast_dtype(x) == torch.float16 and factors.numel():
        kernel, factors = _within_float16(kernel, factors, factor)
    y, channels = CONVOLUTIONS[kernel.dim() - 2](x, kernel, None, *geometry), 1 - kernel.dim()
    if geometry[-1] == 1:
        return scale_maps(y, factors, rectified=rectified)
    groups = y.unflatten(channels, (geometry[-1], -1))
    y = (groups * factors.unsqueeze(channels)).to(y.dtype).flatten(channels - 1, channels)
    return F.relu(y) if rectified else y


def _within_float16(kernel: Tensor, factors: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """The kernel over a power of two, and the factors times it: all products fit float16.

    A product is at most the norm of its kernel times that of its patch; patches that are not finite
    do not count. The power is 1 where all fit, and any other rounds nothing but small numbers.
    """
    patches = (factor / factors.detach()).nan_to_num(0.0, 0.0).amax()
    kernels = promote_dtype(kernel.detach()).flatten(1).norm(dim=1).amax()
    power = (kernels * patches / _FITS).clamp(min=1).log2().ceil().exp2()
    return (kernel / power).to(kernel.dtype), factors * power


def _norm_factors(
    x: Tensor, kernel_size: Sequence[int], geometry: tuple, eps: float, factor: float
) -> Tensor:
    """`factor` over the norm of every patch."""
    *steps, groups = geometry
    if groups == 1 and not isinstance(steps[1], str) and takes_maps(x):
        return patch_factors(x, make_window(kernel_size, *steps), eps, factor)
    factors = patch_norms(x, kernel_size, geometry, eps).reciprocal()
    return factors if factor == 1 else factors * factor


def _unit_kernels(weight: Tensor, eps: float) -> Tensor:
    """The kernels over their norms √(‖W‖² + eps)."""
    wide = promote_dtype(weight)
    energy = wide.square().sum(tuple(range(1, weight.dim())), keepdim=True)
    return (wide * (energy + eps).rsqrt()).to(weight.dtype)


def _of_angle(theta: Tensor, angle: str, k: float | Tensor) -> Tensor:
    """g of the angle `theta` in radians."""
    if angle == "linear":
        return 1 - 2 / pi * theta
    height = torch.tanh(pi / (4 * k)) if isinstance(k, Tensor) else tanh(pi / (4 * k))
    return torch.tanh((pi / 2 - theta) / (2 * k)) / height


def check_options(angle: str, normalize: str, k: float | Tensor, eps: float) -> None:
    """Check that the options of `sphere_conv2d` are known and fit together."""
    require_positive("eps", eps)
    require_known("angle", angle, _ANGLES)
    require_known("normalize", normalize, _NORMALIZE)
    if normalize == "input" and angle != "cosine":
        raise ValueError(f'`normalize` must be "both" for `angle` {angle!r}, got "input"')
    if not isinstance(k, Tensor):
        require_positive("k", k)

"""Hyperspherical convolution: functions of the angle between kernel and patch."""

from collections.abc import Callable, Sequence
from math import pi, tanh
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.window import promoted, without_autocast

Angle = Literal["cosine", "linear", "sigmoid"]
Normalize = Literal["both", "input"]
ANGLES: tuple[str, ...] = get_args(Angle)
_NORMALIZE: tuple[str, ...] = get_args(Normalize)

_EDGE = 1e-6
"""Cosines are kept this far inside (-1, 1), where the angle's derivative is finite."""


def patch_norm(
    x: Float[Tensor, "*n c height width"],
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    eps: float = 1e-4,
) -> Float[Tensor, "*n groups h w"]:
    r"""Norm of every patch, $\sqrt{\sum X^2 + \varepsilon}$, over each group's channels and taps.

    Channel sum first, box sum after: one pass over `x` and a one-channel convolution, in float32
    (float64 for such input). At a zero patch it is √eps and its gradient is zero.

    Raises:
        ValueError: `eps` is not positive, or `groups` does not divide the channels.
    """
    _check_eps(eps)
    if x.shape[-3] % groups:
        raise ValueError(f"`groups` must divide the {x.shape[-3]} channels, got {groups}")
    with without_autocast(x):
        energy = promoted(x).square().unflatten(-3, (groups, -1)).sum(-3)
        box = energy.new_ones(groups, 1, *kernel_size)
        return (F.conv2d(energy, box, None, stride, padding, dilation, groups) + eps).sqrt()


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
    in [-1, 1]. Zero patches give θ = π/2 and finite gradients, and so do aligned vectors. Liu et
    al., Deep Hyperspherical Learning (https://arxiv.org/abs/1711.03189), Eq. 2-4; the predictors
    of Neural Similarity Learning use it (§3.3.1, App. A).

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

    Raises:
        ValueError: an option is unknown or does not fit the others.
    """
    _check_options(angle, normalize, k)
    norm = patch_norm(x, weight.shape[2:], stride, padding, dilation, groups, eps=eps)
    kernel = weight if normalize == "input" else _normalized(weight, eps)
    y = F.conv2d(x, kernel, None, stride, padding, dilation, groups)
    y = _divide(y, norm)
    if angle != "cosine":
        y = _of_angle(angle, k)(promoted(y).clamp(-1 + _EDGE, 1 - _EDGE).acos()).to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1)


def _divide(y: Tensor, norm: Tensor) -> Tensor:
    """Every group's channels of y (*n, o, h, w) divided by its norm (*n, groups, h, w)."""
    scale = norm.reciprocal().to(y.dtype).unsqueeze(-3)
    return (y.unflatten(-3, (norm.shape[-3], -1)) * scale).flatten(-4, -3)


def _normalized(weight: Tensor, eps: float) -> Tensor:
    """Kernels of length ‖W‖ / √(‖W‖² + eps)."""
    energy = promoted(weight).square().sum((1, 2, 3), keepdim=True)
    return weight * (energy + eps).rsqrt().to(weight.dtype)


def _of_angle(angle: str, k: float | Tensor) -> Callable[[Tensor], Tensor]:
    """g of the angle in radians."""
    if angle == "linear":
        return lambda theta: 1 - 2 / pi * theta
    height = torch.tanh(pi / (4 * k)) if isinstance(k, Tensor) else tanh(pi / (4 * k))
    return lambda theta: torch.tanh((pi / 2 - theta) / (2 * k)) / height


def _check_eps(eps: float) -> None:
    if not eps > 0:
        raise ValueError(f"`eps` must be positive, got {eps}")


def _check_options(angle: str, normalize: str, k: float | Tensor) -> None:
    if angle not in ANGLES:
        raise ValueError(f"`angle` must be one of {', '.join(ANGLES)}, got {angle!r}")
    if normalize not in _NORMALIZE:
        raise ValueError(f"`normalize` must be one of {', '.join(_NORMALIZE)}, got {normalize!r}")
    if normalize == "input" and angle != "cosine":
        raise ValueError(f'`normalize` must be "both" for `angle` {angle!r}, got "input"')
    if not isinstance(k, Tensor) and not k > 0:
        raise ValueError(f"`k` must be positive, got {k}")

"""The pointwise operations of a predictor by torch's own, for any device and type."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import grad as convolution_gradients

from neural_similarity.ops.window import CONVOLUTIONS, Window, promote_dtype, without_autocast

_INPUTS: dict[int, Callable[..., Tensor]] = {
    3: convolution_gradients.conv1d_input,
    4: convolution_gradients.conv2d_input,
    5: convolution_gradients.conv3d_input,
}


def patch_norms(x: Tensor, kernel_size: Sequence[int], geometry: tuple, eps: float) -> Tensor:
    """`ns.functional.patch_norm` of arguments that are checked already.

    `geometry` is stride, padding, dilation and groups.
    """
    dims, groups = len(kernel_size), geometry[-1]
    energy, channels = promote_dtype(x).square(), -dims - 1
    if groups > 1:
        energy = energy.unflatten(channels, (groups, -1)).sum(channels)
    else:
        energy = energy.sum(channels, keepdim=True)
    # Not by `new_ones`, which Core ML lacks.
    box = torch.ones(groups, 1, *kernel_size, dtype=energy.dtype, device=energy.device)
    with without_autocast(x):
        energy = CONVOLUTIONS[dims](energy, box, None, *geometry)
    if energy.is_cuda:  # Some of cuDNN's algorithms leave small sums below zero.
        energy = energy.clamp_min(0)
    return (energy + eps).sqrt()


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), in float32 at least."""
    factors = patch_norms(x, window.kernel_size, (*window[1:], 1), eps).reciprocal()
    return factors if factor == 1 else factors * factor


def patch_factors_gradient(
    grad: Tensor, x: Tensor, factors: Tensor, window: Window, factor: float
) -> Tensor:
    """The gradient of `patch_factors` by x; it can be differentiated again.

    A factor of 0 is of a norm that has overflowed; its own gradient, divided by 0, may be NaN.
    """
    # In this order, as the cube of a small factor would vanish.
    energy = -grad * factors * (factors / factor).square()
    energy = energy.masked_fill(factors == 0, 0)
    box, shape = energy.new_ones(1, 1, *window.kernel_size), (len(x), 1, *x.shape[2:])
    with without_autocast(x):
        pixels = _INPUTS[x.dim()](shape, box, energy, *window[1:])
    return (x * pixels).to(x.dtype)


def scale_maps(y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
    """y (n, c, *size) times factors (n, 1, *size) in y's type, or the ReLU of that."""
    z = (y * factors).to(y.dtype)
    return F.relu(z) if rectified else z


def scaled_gradient(
    grad: Tensor, z: Tensor, factors: Tensor, rectified: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the factors, from y itself or, rectified, from the result."""
    grad = grad.masked_fill(z <= 0, 0) if rectified else grad  # NaN stays
    of_factors = (promote_dtype(grad) * z).sum(1, keepdim=True)
    of_factors = of_factors / factors if rectified else of_factors
    return (grad * factors).to(z.dtype), of_factors


def apply_gain(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,) in float32 at least, plus 1 in every `every`-th channel."""
    raw = promote_dtype(raw)
    m = raw * gain.to(raw.dtype).view(-1, *[1] * (raw.dim() - 2))
    if every:
        (m if every == 1 else m[:, ::every]).add_(1)
    return m


def gained_gradient(grad: Tensor, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of raw and gain."""
    shape, positions = (-1, *[1] * (raw.dim() - 2)), (0, *range(2, raw.dim()))
    of_gain = (grad * raw).sum(positions).to(gain.dtype)
    return (grad * gain.view(shape)).to(raw.dtype), of_gain

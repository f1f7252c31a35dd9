"""Predictors: small networks that see a layer's input and output M's scalars at every position."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from neural_similarity.choices import require_count, require_flag, require_known, require_positive
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.spec import Spec
from neural_similarity.ops.sphere import Angle, Normalize, check_options, sphere_conv
from neural_similarity.ops.window import (
    CONVOLUTIONS,
    promote_dtype,
    unit_vectors,
    without_autocast,
)

Predictor = Callable[[Geometry, int], nn.Module]
"""(geometry, scalars) to a module mapping (n, c, *size) to (n, scalars, *out), or to
(n, scalars, 1, ...) for one M per image. Where its attribute `GROWS` is true, values inside grow
with the input: it runs in float32 where the layer runs in float16."""

CONV_LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
PatchNormalize = Literal["rms", "input", "both"]
Bound = Literal["tanh", "sigmoid", "normalize"]

BOUNDS: dict[Bound, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "normalize": partial(unit_vectors, dim=1),
}


def require_bound(bound: Any) -> None:
    """Check that a bound is a name of `BOUNDS` or None."""
    if bound is not None and (not isinstance(bound, str) or bound not in BOUNDS):
        raise ValueError(f'`bound` must be "tanh", "sigmoid", "normalize" or None, got {bound!r}')


def bound_prediction(bound: Bound | None, raw: Tensor) -> Tensor:
    """The raw prediction within a bound, in float32 at least."""
    return raw if bound is None else BOUNDS[bound](promote_dtype(raw))


@dataclass(frozen=True, kw_only=True, repr=False)
class TwoLayers(Spec, ABC):
    """A convolution with the layer's own window, ReLU, and a second convolution.

    Attributes:
        hidden: Channels between the two; by default 64 for up to K scalars, 128 for more (App. A).
        last_kernel_size: Kernel size of the second convolution, 3 or 1, along every dimension.
        resolution: Predict at every `resolution`-th position along each dimension, and interpolate
            linearly between them; positions after the last take its prediction.
        per_image: Average the hidden channels over the positions: the module then outputs one M per
            image, (n, scalars, 1, ...).
        batch_norm: Normalise after both convolutions; with `per_image`, batches need two images.
        batch_norm_eps: Its eps. PyTorch's usual 1e-5 would undo the released small initial scales.
        scales: Factors on He's standard deviation for the two kernels.

    Raises:
        ValueError: a value is not one of these.
    """

    hidden: int | None = None
    last_kernel_size: int = 3
    resolution: int = 1
    per_image: bool = False
    batch_norm: bool = False
    batch_norm_eps: float = 1e-3
    scales: tuple[float, float] | None = None

    def __post_init__(self):
        if self.hidden is not None:
            require_count("hidden", self.hidden)
        require_count("resolution", self.resolution)
        require_flag("per_image", self.per_image)
        require_flag("batch_norm", self.batch_norm)
        size = self.last_kernel_size
        if not isinstance(size, int) or size not in (1, 3):
            raise ValueError(f"`last_kernel_size` must be 1 or 3, got {size!r}")
        require_positive("batch_norm_eps", self.batch_norm_eps)
        scales = (1.0, 1.0) if self.scales is None else self.scales
        numbers = isinstance(scales, tuple) and all(isinstance(s, int | float) for s in scales)
        if not numbers or len(scales) != 2 or not all(map(isfinite, scales)):
            raise ValueError(f"`scales` must be a tuple of two numbers, got {self.scales!r}")

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        return TwoLayersModule(self, geometry, scalars)

    @property
    def has_bias(self) -> bool:
        """Whether the second convolution has one."""
        return not self.batch_norm

    def default_scales(self, patch_size: int) -> tuple[float, float]:
        """Factors on He's standard deviation where `scales` are not given."""
        del patch_size
        return 1.0, 1.0

    @abstractmethod
    def first(self, x: Tensor, weight: Tensor, *window: Any, rectified: bool = False) -> Tensor:
        """The first convolution, or its ReLU; `window` is stride, padding, dilation."""

    @abstractmethod
    def second(self, hidden: Tensor, last: nn.Module) -> Tensor:
        """The second convolution, `last`."""

    def bound_all(self, raw: Tensor) -> Tensor:
        """The prediction within its bounds, where it has any."""
        return raw


@dataclass(frozen=True, kw_only=True, repr=False)
class SphereNet(TwoLayers):
    r"""Patch-normalised convolution, ReLU, 3×3 convolution: the paper's default predictor.

    $$\text{raw} = W_2 * \mathrm{ReLU}\!\left(\sqrt{N}\,\frac{W_1 * x}{\|X\|}\right) + b$$

    The first convolution has the layer's own kernel size, stride, padding and dilation, so it sees
    the patch X of N = C·K numbers that M will act on, and positions always match; it divides by
    their root mean square, $\|X\|/\sqrt N$ with $\|X\| = \sqrt{\sum X^2 + \varepsilon}$, and
    leaves the kernel as it is ("SphereConv, only x being normalized", App. A). The second is 3×3,
    stride 1. Both start at He's initialisation.

    With `normalize="input"` it divides by the norm, as in the paper. The functions are the same,
    but the kernel is √N times larger, and gradient descent at the same rate moves it N times less,
    relative to its size. On CIFAR-10 it hardly learned in 8,000 updates
    (docs/evidence/results.md). It starts at standard deviation √2, He's for patches of norm 1.

    The released code does so with batch normalisation after both convolutions of its diagonal
    predictor (`batch_norm=True`), starting at 0.1 and 0.001 of He's (`scales=(0.1, 0.001)`), and
    with `ns.Dynamic(..., init="released")`.

    Attributes:
        normalize: "rms"; "input" to divide by the patch norm; "both" to divide by the kernels'
            norms too (the released code's "fully normalised" predictor).
        angle: Function of the angle, see `ns.functional.sphere_conv2d`; all but "cosine" need both
            normalised.
        k: Width of the "sigmoid".
        bounded: Make the second convolution hyperspherical too, with both normalised, so that every
            prediction lies in [-1, 1] (§3.3.1).
        eps: Added to the squared norms.

    Raises:
        ValueError: an option is unknown, out of its range, or does not fit the others.
    """

    normalize: PatchNormalize = "rms"
    angle: Angle = "cosine"
    k: float = 0.3
    bounded: bool = False
    eps: float = 1e-4

    def __post_init__(self):
        super().__post_init__()
        require_known("normalize", self.normalize, get_args(PatchNormalize))
        check_options(self.angle, "both", self.k, self.eps)
        if self.angle != "cosine" and self.normalize != "both":
            raise ValueError(
                f'`normalize` must be "both" for `angle` {self.angle!r}, got {self.normalize!r}'
            )
        require_flag("bounded", self.bounded)
        if self.bounded and self.batch_norm:
            raise ValueError("`bounded` must be False with `batch_norm`, which undoes it, got True")

    @property
    def has_bias(self) -> bool:
        """Whether the second convolution has one."""
        return not self.batch_norm and not self.bounded

    def default_scales(self, patch_size: int) -> tuple[float, float]:
        """He's initialisation for the norm that patches are divided by."""
        return patch_size**0.5 if self.normalize == "input" else 1.0, 1.0

    def first(self, x: Tensor, weight: Tensor, *window: Any, rectified: bool = False) -> Tensor:
        """The patch-normalised convolution, or its ReLU."""
        factor = weight[0].numel() ** 0.5 if self.normalize == "rms" else 1.0
        norms: Normalize = "both" if self.normalize == "both" else "input"
        options = {"angle": self.angle, "k": self.k, "normalize": norms, "eps": self.eps}
        return sphere_conv(x, weight, *window, **options, factor=factor, rectified=rectified)

    def second(self, hidden: Tensor, last: Any) -> Tensor:
        """A plain convolution, or a hyperspherical one without bias."""
        if not self.bounded:
            return last(hidden)
        options = {"angle": self.angle, "k": self.k, "eps": self.eps}
        return sphere_conv(hidden, last.weight, last.stride, last.padding, **options)


@dataclass(frozen=True, kw_only=True, repr=False)
class CNN(TwoLayers):
    """Convolution, ReLU, 3×3 convolution, and a bound: the paper's other predictor, §3.3.1.

    As `SphereNet` without normalised patches. The paper reports that it does not converge unless
    its output is bounded or normalised.

    Attributes:
        bound: "tanh" or "sigmoid" of every value; "normalize" divides a position's values by
            their norm; None leaves them as they are.

    Raises:
        ValueError: an option is unknown or out of its range.
    """

    GROWS: ClassVar[bool] = True
    bound: Bound | None = "tanh"

    def __post_init__(self):
        super().__post_init__()
        require_bound(self.bound)

    def first(self, x: Tensor, weight: Tensor, *window: Any, rectified: bool = False) -> Tensor:
        y = CONVOLUTIONS[weight.dim() - 2](x, weight, None, *window)
        return F.relu(y) if rectified else y

    def second(self, hidden: Tensor, last: nn.Module) -> Tensor:
        return last(hidden)

    def bound_all(self, raw: Tensor) -> Tensor:
        """The prediction within `bound`, in float32 at least."""
        return bound_prediction(self.bound, raw)


class TwoLayersModule(nn.Module):
    def __init__(self, spec: TwoLayers, geometry: Geometry, scalars: int):
        super().__init__()
        dims = len(geometry.kernel_size)
        hidden = spec.hidden or (64 if scalars <= geometry.taps else 128)
        size = spec.last_kernel_size if geometry.spatial and not spec.per_image else 1
        self.spec = spec
        self.geometry = geometry
        self.patch = PatchConv(spec, geometry, hidden)
        self.norm1 = hidden_norm(spec, hidden, dims)
        self.last = CONV_LAYERS[dims](hidden, scalars, size, padding=size // 2, bias=spec.has_bias)
        self.norm2 = hidden_norm(spec, scalars, dims)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both kernels again."""
        self.patch.reset_parameters()
        reset_kernel(self.last, self.patch.initial_scales[1])

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, *size) to (n, scalars, *out), or (n, scalars, 1, ...) with `per_image`."""
        if self.spec.batch_norm:
            hidden = F.relu(self.norm1(self.patch(x)))
        else:  # in one pass
            hidden = self.patch(x, rectified=True)
        positions = tuple(range(2, x.dim()))
        if self.spec.per_image:
            hidden = hidden.mean(positions, keepdim=True)
        raw = self.spec.bound_all(self.norm2(self.spec.second(hidden, self.last)))
        if self.spec.per_image or self.spec.resolution == 1:
            return raw
        return _interpolate_maps(raw, self.geometry.output_size(x.shape[2:]), self.spec.resolution)


class PatchConv(nn.Module):
    """A predictor's first convolution: the layer's own window over the layer's own input."""

    def __init__(self, spec: TwoLayers, geometry: Geometry, out_channels: int):
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        stride = tuple(spec.resolution * step for step in geometry.stride)
        self.window = stride, geometry.window.padding, geometry.dilation
        size = (out_channels, geometry.in_channels, *geometry.kernel_size)
        self.weight = nn.Parameter(torch.empty(size))

    @property
    def initial_scales(self) -> tuple[float, float]:
        """Factors on He's standard deviation for the predictor's two kernels."""
        return self.spec.scales or self.spec.default_scales(self.weight[0].numel())

    def reset_parameters(self) -> None:
        """Initialise the kernel again."""
        reset_kernel(self, self.initial_scales[0])

    def forward(self, x: Tensor, *, rectified: bool = False) -> Tensor:
        """(n, c, *size) to (n, out_channels, *out), or the ReLU of it."""
        padded = self.geometry.pad_input(x)
        return self.spec.first(padded, self.weight, *self.window, rectified=rectified)

    def extra_repr(self) -> str:
        """The shape of the kernel, for `repr`."""
        return ", ".join(map(str, self.weight.shape))


def in_float32(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` in float32, where maps that grow with x would overflow float16."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wide = {name: t.float() for name, t in tensors.items() if t.dtype == torch.float16}
    with without_autocast(x):
        y = functional_call(module, wide, (x.float(),))
    for name in wide.keys() & dict(module.named_buffers()).keys():
        tensors[name].copy_(wide[name])  # running statistics
    return y


def hidden_norm(spec: Any, channels: int, dims: int) -> nn.Module:
    """Batch normalisation if `spec.batch_norm`, with eps `spec.batch_norm_eps`, or nothing."""
    if not spec.batch_norm:
        return nn.Identity()
    return _NORMS[dims](channels, eps=spec.batch_norm_eps)


def reset_kernel(layer: Any, scale: float = 1.0) -> None:
    """Draw a layer's kernel at `scale` times He's standard deviation; a bias starts at 0."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    layer.weight.data.mul_(scale)
    if getattr(layer, "bias", None) is not None:
        nn.init.zeros_(layer.bias)


def _interpolate_maps(raw: Tensor, size: tuple[int, ...], every: int) -> Tensor:
    """Interpolate linearly between `raw`, given at every `every`-th of `size` positions.

    `F.interpolate` would take `raw` for the values at the centres of as many equal parts.
    """
    for dim, length in enumerate(size, start=2):
        position = torch.arange(length, device=raw.device)
        before = position // every
        after = (before + 1).clamp(max=raw.shape[dim] - 1)
        share = (position % every).to(promote_dtype(raw).dtype) / every
        share = share.to(raw.dtype).view(-1, *[1] * (raw.dim() - dim - 1))
        raw = torch.lerp(raw.index_select(dim, before), raw.index_select(dim, after), share)
    return raw

"""Predictors: small networks that see a layer's input and output M's scalars at every position."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.nn.geometry import Geometry
from neural_similarity.ops import sphere_conv2d

Predictor = Callable[[Geometry, int], nn.Module]
"""(geometry, scalars) to a module mapping (n, c, height, width) to (n, scalars, h, w)."""


@dataclass(frozen=True)
class SphereNet:
    r"""Patch-normalised convolution, ReLU, 3×3 convolution: the paper's default predictor.

    $$\text{raw} = W_2 * \mathrm{ReLU}\!\left(\frac{W_1 * x}{\|X\|}\right) + b$$

    The first convolution has the layer's own kernel size, stride, padding and dilation, so it sees
    the patch X that M will act on and positions always match; it divides by
    $\|X\| = \sqrt{\sum X^2 + \varepsilon}$ and leaves the kernel as it is ("SphereConv, only x
    being normalized", App. A). The second is 3×3, stride 1.

    The released code puts batch normalisation behind both convolutions of its diagonal predictor
    (`batch_norm=True`) and starts them at 0.1 and 0.001 of He initialisation
    (`scales=(0.1, 0.001)`), with `ns.Dynamic(..., init="released")`.

    Attributes:
        hidden: Channels between the two; by default 64 for up to K scalars, 128 for more (App. A).
        batch_norm: Normalise behind both convolutions.
        batch_norm_eps: Its eps. With PyTorch's usual 1e-5 the released small start is undone.
        scales: Factors on He's standard deviation for the two kernels. By default the second is at
            He's and the first at He's for patches of unit norm, √2 whatever their size: a patch of
            C·K numbers over its norm is √(C·K) times smaller than what He's counts on.
        eps: Added to the squared patch norm.
    """

    hidden: int | None = None
    batch_norm: bool = False
    batch_norm_eps: float = 1e-3
    scales: tuple[float, float] | None = None
    eps: float = 1e-4

    def __post_init__(self):
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"`hidden` must be at least 1, got {self.hidden}")
        if self.eps <= 0 or self.batch_norm_eps <= 0:
            raise ValueError(
                f"`eps` and `batch_norm_eps` must be positive, got {self.eps}, "
                f"{self.batch_norm_eps}"
            )

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        """The predictor module for a layer of this geometry."""
        hidden = self.hidden or (64 if scalars <= geometry.taps else 128)
        return _SphereNet(self, geometry, hidden, scalars)


class _SphereNet(nn.Module):
    def __init__(self, spec: SphereNet, geometry: Geometry, hidden: int, scalars: int):
        super().__init__()
        normed = spec.batch_norm
        self.patch = PatchNormalizedConv2d(geometry, hidden, eps=spec.eps)
        self.norm1 = nn.BatchNorm2d(hidden, eps=spec.batch_norm_eps) if normed else nn.Identity()
        self.last = nn.Conv2d(hidden, scalars, 3, padding=1, bias=not normed)
        self.norm2 = nn.BatchNorm2d(scalars, eps=spec.batch_norm_eps) if normed else nn.Identity()
        patch_size = self.patch.weight[0].numel()
        scales = spec.scales or (patch_size**0.5, 1.0)
        for weight, scale in zip((self.patch.weight, self.last.weight), scales, strict=True):
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
            weight.data.mul_(scale)
        if self.last.bias is not None:
            nn.init.zeros_(self.last.bias)

    def forward(self, x: Float[Tensor, "n c height width"]) -> Float[Tensor, "n scalars h w"]:
        hidden = F.relu(self.norm1(self.patch(x)))
        return self.norm2(self.last(hidden))


class PatchNormalizedConv2d(nn.Module):
    """A layer's own window over the input, each response divided by the norm of its patch."""

    def __init__(self, geometry: Geometry, out_channels: int, *, eps: float):
        super().__init__()
        self.geometry = geometry
        self.eps = eps
        size = (out_channels, geometry.in_channels, *geometry.kernel_size)
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, height, width) to (n, out_channels, h, w)."""
        x, padding = self.geometry.pad(x)
        stride, dilation = self.geometry.stride, self.geometry.dilation
        return sphere_conv2d(
            x, self.weight, None, stride, padding, dilation, normalize="input", eps=self.eps
        )

    def extra_repr(self) -> str:
        """Shape of the kernel and eps."""
        return f"{', '.join(map(str, self.weight.shape))}, eps={self.eps}"

"""The cheap predictors: few channels, or one M per image."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import require_count
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import (
    CONV_LAYERS,
    Bound,
    bound_prediction,
    require_bound,
    reset_kernel,
)
from neural_similarity.nn.spec import Spec
from neural_similarity.ops.sphere import sphere_conv
from neural_similarity.ops.window import unit_vectors, without_half


@dataclass(frozen=True, kw_only=True, repr=False)
class Pooled(Spec):
    r"""One M per image, from the averages of the input's channels; not in the paper.

    $$\text{raw} = \tanh\!\left(
    A_2\, \mathrm{ReLU}\!\left(\sqrt{C}\, A_1 \frac{a}{\|a\|} + b_1\right) + b_2\right)$$

    where a has the averages of the C channels over all positions, as squeeze-and-excitation
    predicts its gains (https://arxiv.org/abs/1709.01507). They are divided by their root mean
    square, as patches are in `SphereNet`: else M would grow with its own layer's input. The
    predictor has no convolution, and M folds into one kernel per image where that is cheaper, so
    the layer has hardly more multiplications than a plain one. Without a bound CNN-9 trains worse
    than its plain twin, as the paper reports of CNN predictors (§3.3.1).

    A single average divided by its own length is ±1, whatever the image. So for one channel a also
    has the standard deviation of its pixels; and for linear and recurrent layers, whose inputs have
    one position, a is the input's features.

    Attributes:
        hidden: Units between the two linear layers.
        bound: "tanh" or "sigmoid" of every value; "normalize" divides an image's values by
            their norm; None leaves them as they are.

    Raises:
        ValueError: `hidden` is not a positive integer, or `bound` is unknown; or (when built) the
            layer is linear or recurrent and has a single feature.
    """

    hidden: int = 64
    bound: Bound | None = "tanh"

    def __post_init__(self):
        require_count("hidden", self.hidden)
        require_bound(self.bound)

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        if not geometry.spatial and geometry.taps == 1:
            raise ValueError(
                "`predictor` Pooled needs at least 2 features, since one over its own length is "
                f"±1, got {geometry.taps}"
            )
        return PooledModule(self, geometry, scalars)


@dataclass(frozen=True, kw_only=True, repr=False)
class Light(Spec):
    r"""A cheap predictor: 1×1 convolution to C/4 channels, ReLU, patch-normalised convolution.

    $$\text{raw} = \tanh\!\left(\sqrt{N}\,\frac{W_2 * a}{\|A\|} + b\right),
    \qquad a = \mathrm{ReLU}(W_1\, x)$$

    where A is the patch of N numbers that the second convolution, of the layer's own window, sees.
    For 64 channels and nine scalars it multiplies 2,320 times at a position, `SphereNet` 42,048
    times. Not in the paper, which reports that CNN predictors need a bound (§3.3.1).

    Attributes:
        reduction: C over the channels between the convolutions, of which there are at least 8.
        bound: "tanh" or "sigmoid" of every value; "normalize" divides a position's values by
            their norm; None leaves them as they are.

    Raises:
        ValueError: `reduction` is not a positive integer, or `bound` is unknown.
    """

    GROWS: ClassVar[bool] = True
    reduction: int = 4
    bound: Bound | None = "tanh"

    def __post_init__(self):
        require_count("reduction", self.reduction)
        require_bound(self.bound)

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        return LightModule(self, geometry, scalars)


class LightModule(nn.Module):
    """The module of `Light`."""

    def __init__(self, spec: Light, geometry: Geometry, scalars: int):
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        conv, window = CONV_LAYERS[len(geometry.kernel_size)], geometry.window
        hidden = self.hidden_channels(spec, geometry)
        self.first = conv(geometry.in_channels, hidden, 1, bias=False)
        self.last = conv(hidden, scalars, *window)
        self.reset_parameters()

    @staticmethod
    def hidden_channels(spec: Light, geometry: Geometry) -> int:
        """Channels between the convolutions."""
        return max(8, geometry.in_channels // spec.reduction)

    def reset_parameters(self) -> None:
        """Initialise both kernels again."""
        reset_kernel(self.first)
        reset_kernel(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, *size) to (n, scalars, *out)."""
        hidden, last = F.relu(self.first(self.geometry.pad_input(x))), self.last
        raw = sphere_conv(
            hidden, last.weight, last.stride, last.padding, last.dilation,
            normalize="input", factor=last.weight[0].numel() ** 0.5,
        )  # fmt: skip
        bias = last.bias.to(raw.dtype).view(-1, *[1] * (x.dim() - 2))
        return bound_prediction(self.spec.bound, raw + bias)


class PooledModule(nn.Module):
    """The module of `Pooled`."""

    def __init__(self, spec: Pooled, geometry: Geometry, scalars: int):
        super().__init__()
        self.spec = spec
        self.spatial = geometry.spatial
        inputs = max(2, geometry.in_channels) if geometry.spatial else geometry.taps
        self.first = nn.Linear(inputs, spec.hidden)
        self.last = nn.Linear(spec.hidden, scalars)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both matrices again."""
        reset_kernel(self.first)
        reset_kernel(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, *size) to (n, scalars, 1, ...)."""
        direction = unit_vectors(self._summary(x), 1) * self.first.in_features**0.5
        raw = self.last(F.relu(self.first(direction.to(x.dtype))))
        raw = bound_prediction(self.spec.bound, raw)
        return raw.view(*raw.shape, *[1] * (x.dim() - 2))

    def _summary(self, x: Tensor) -> Tensor:
        """The averages a; for one channel average and deviation, for one position its features."""
        if not self.spatial:
            return x.flatten(1)
        pixels = without_half(x.flatten(2))
        averages = pixels.mean(2)
        if x.shape[1] > 1:
            return averages
        # Only the direction counts: smaller numbers, where squares of large ones would overflow.
        smaller = (pixels.detach().abs().amax(2, keepdim=True) / 1e4).clamp(min=1)
        averages, centred = averages / smaller[..., 0], (pixels - averages.unsqueeze(2)) / smaller
        return torch.cat([averages, centred.norm(dim=2) / pixels.shape[2] ** 0.5], 1)

"""Other layers whose kernel depends on the image, for comparison in the same networks.

Each takes the arguments of a plain convolution without groups, so that `building.stages` can use it
in place of one. They are baselines for `ns.Dynamic`, which predicts a small M per position for a
kernel that all images share.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.ops.window import promote_dtype, without_autocast


class BaselineLayer(nn.Module):
    """A square convolution whose kernel, or whose sampling positions, depend on the image.

    Args:
        in_channels: Channels of the input.
        out_channels: Kernels.
        kernel_size: Taps along each dimension.
        stride: Step of the window.
        padding: Zeros on every side.
        bias: Whether to add a bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """The shape of a plain convolution's kernel."""
        return self.out_channels, self.in_channels, self.kernel_size, self.kernel_size

    def start(self) -> None:
        """Draw the initial parameters; networks do so after drawing those of plain layers."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        size = f"{self.in_channels}, {self.out_channels}, {self.kernel_size}"
        return f"{size}, stride={self.stride}, padding={self.padding}"


class _PerImage(BaselineLayer):
    """A convolution with a kernel per image, computed from the averages of its channels."""

    def kernels(self, averages: Tensor) -> Tensor:
        """Averages (n, c) to kernels (n, o, c, k, k)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, height, width) to (n, o, h, w)."""
        kernels = self.kernels(x.mean((2, 3)))
        grouped = x.reshape(1, -1, *x.shape[2:])
        y = F.conv2d(grouped, kernels.flatten(0, 1), None, self.stride, self.padding, groups=len(x))
        y = y.view(len(x), self.out_channels, *y.shape[2:])
        return y if self.bias is None else y + self.bias[:, None, None]


class CondConv2d(_PerImage):
    r"""Conditionally parameterised convolution: every image mixes a few kernels.

    $$y = \Big(\sum_e \alpha_e W_e\Big) * x, \qquad \alpha = \sigma(R\,\bar x + r)$$

    with $\bar x$ the channels' averages over the positions. Yang et al., CondConv
    (https://arxiv.org/abs/1904.04971), of 4 to 16 kernels `experts`.
    Other arguments: see `BaselineLayer`.
    """

    def __init__(self, *args: Any, experts: int = 4, **options: Any):
        super().__init__(*args, **options)
        self.weight = nn.Parameter(torch.empty(experts, *self.kernel_shape))
        self.routing = nn.Linear(self.in_channels, experts)
        self.start()

    def start(self) -> None:
        """He's initialisation of every kernel; routes near one half."""
        for kernel in self.weight:
            nn.init.kaiming_normal_(kernel, nonlinearity="relu")
        nn.init.normal_(self.routing.weight, std=0.01)
        nn.init.zeros_(self.routing.bias)

    def kernels(self, averages: Tensor) -> Tensor:
        """The mixed kernels (n, o, c, k, k)."""
        return torch.einsum("ne,eocij->nocij", self.routing(averages).sigmoid(), self.weight)


class DynamicFilter2d(_PerImage):
    r"""Dynamic filter network: another network generates the whole kernel from the image.

    $$y = W(x) * x, \qquad W(x) = G\tanh(A\bar x + a) + g$$

    with $\bar x$ the channels' averages over the positions and G as large as `hidden` kernels. De
    Brabandere et al., Dynamic Filter Networks (https://arxiv.org/abs/1605.09673), with the smallest
    generator, since for 128 to 128 channels it must generate 147,456 weights. Units are bounded:
    with ReLU a kernel grows with its input, so that a layer is quadratic in the scale of an image,
    nine of them have degree 512, and few images dominate the batch statistics. Other arguments: see
    `BaselineLayer`.
    """

    def __init__(self, *args: Any, hidden: int = 4, **options: Any):
        super().__init__(*args, **options)
        self.hide = nn.Linear(self.in_channels, hidden)
        self.generate = nn.Linear(hidden, torch.Size(self.kernel_shape).numel())
        self.start()

    def start(self) -> None:
        """He's initialisation of every unit's contribution to the kernel, and of g."""
        nn.init.kaiming_normal_(self.hide.weight, nonlinearity="relu")
        nn.init.zeros_(self.hide.bias)
        std = (2 / (self.in_channels * self.kernel_size**2)) ** 0.5
        nn.init.normal_(self.generate.weight, std=std / self.hide.out_features**0.5)
        nn.init.normal_(self.generate.bias, std=std)

    def kernels(self, averages: Tensor) -> Tensor:
        """The generated kernels (n, o, c, k, k)."""
        return self.generate(self.hide(averages).tanh()).view(-1, *self.kernel_shape)


class DeformableConv2d(BaselineLayer):
    r"""Modulated deformable convolution: every tap of a position has an offset and a weight.

    $$y_o(p) = \sum_{c,k} W_{ock}\, m_k(p)\, x_c(p + p_k + \Delta_k(p))$$

    x is interpolated bilinearly and zero outside; Δ and m = 2σ(·) come from one convolution with
    the layer's own window that starts at zero, where the layer is the plain convolution. m alone is
    a dynamic diagonal similarity. Zhu et al., Deformable ConvNets v2
    (https://arxiv.org/abs/1811.11168), whose m is σ(·) and starts at one half. Arguments: see
    `BaselineLayer`.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.weight = nn.Parameter(torch.empty(self.kernel_shape))
        taps = self.kernel_size**2
        self.predict = nn.Conv2d(
            self.in_channels, 3 * taps, self.kernel_size, self.stride, self.padding
        )
        self.start()

    def start(self) -> None:
        """He's initialisation of the kernel; no offsets and m = 1."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        for parameter in self.predict.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, height, width) to (n, o, h, w)."""
        offset, mask = self.predict(x).split([2 * self.kernel_size**2, self.kernel_size**2], 1)
        y = deformable_conv2d(
            x, offset, self.weight, 2 * mask.sigmoid(), stride=self.stride, padding=self.padding
        )
        return y if self.bias is None else y + self.bias[:, None, None]


def deformable_conv2d(
    x: Tensor, offset: Tensor, weight: Tensor, mask: Tensor, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Modulated deformable convolution as torchvision's `deform_conv2d`, in plain torch.

    Args:
        x: (n, c, height, width).
        offset: (n, 2 * k * k, h, w), down and right for every tap.
        weight: (o, c, k, k).
        mask: (n, k * k, h, w).
        stride: Step of the window.
        padding: Zeros on every side.

    Returns:
        (n, o, h, w).
    """
    n, channels = x.shape[:2]
    size, taps = weight.shape[-1], weight.shape[-1] ** 2
    with without_autocast(x):
        places = _tap_places(mask.shape[2:], size, stride, padding, promote_dtype(x))
        places = places + promote_dtype(offset).unflatten(1, (taps, 2))  # (n, taps, 2, h, w)
        sides = zip(places.unbind(2), x.shape[2:], strict=True)
        row, column = ((2 * place + 1) / side - 1 for place, side in sides)
        grid = torch.stack([column, row], -1).flatten(1, 2)
        patches = F.grid_sample(promote_dtype(x), grid, align_corners=False)
        patches = patches.view(n, channels, taps, *mask.shape[2:]) * promote_dtype(mask)[:, None]
    columns = patches.to(x.dtype).flatten(1, 2).flatten(2)  # (n, c * taps, h * w)
    y = torch.matmul(weight.flatten(1), columns)
    return y.view(n, len(weight), *mask.shape[2:])


def _tap_places(out: torch.Size, size: int, stride: int, padding: int, like: Tensor) -> Tensor:
    """Row and column (taps, 2, h, w) of every tap at every position, before its offset."""
    tap = torch.arange(size, device=like.device, dtype=like.dtype)
    rows, columns = (
        torch.arange(count, device=like.device, dtype=like.dtype) * stride - padding
        for count in out
    )
    row = (tap[:, None, None, None] + rows[:, None]).expand(size, size, *out)
    column = (tap[:, None, None] + columns).expand(size, size, *out)
    return torch.stack([row, column], 2).flatten(0, 1)

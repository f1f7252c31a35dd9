"""Other layers whose kernel depends on the image, in CNN-9, for comparison with `ns.Dynamic`.

Each takes the arguments of a plain convolution without groups. The entry point
`neural_similarity.networks` names this module, so that recipes may name the networks of `RIVALS`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.models import MODELS, WITHOUT_SIMILARITY, cnn9
from neural_similarity.ops import promote_dtype, without_autocast


class RivalLayer(nn.Module):
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


class _PerImage(RivalLayer):
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
    Other arguments: see `RivalLayer`.
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
    `RivalLayer`.
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


class DeformableConv2d(RivalLayer):
    r"""Modulated deformable convolution: every tap of a position has an offset and a weight.

    $$y_o(p) = \sum_{c,k} W_{ock}\, m_k(p)\, x_c(p + p_k + \Delta_k(p))$$

    x is interpolated bilinearly and zero outside; Δ and m = 2σ(·) come from one convolution with
    the layer's own window that starts at zero, where the layer is the plain convolution. m alone is
    a dynamic diagonal similarity. Zhu et al., Deformable ConvNets v2
    (https://arxiv.org/abs/1811.11168), whose m is σ(·) and starts at one half. Arguments: see
    `RivalLayer`.
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
        from torchvision.ops import deform_conv2d

        predicted, taps = self.predict(x), self.kernel_size**2
        stride, padding = (self.stride, self.stride), (self.padding, self.padding)
        with without_autocast(x):  # torchvision's needs one type of all
            offset, mask = promote_dtype(predicted).split([2 * taps, taps], 1)
            weight = promote_dtype(self.weight)
            y = deform_conv2d(
                promote_dtype(x), offset, weight, None, stride, padding, mask=2 * mask.sigmoid()
            ).to(predicted.dtype)
        return y if self.bias is None else y + self.bias[:, None, None]


def rival_cnn9(
    layer: Callable[..., RivalLayer],
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: None = None,
) -> nn.Module:
    """CNN-9 with these layers, which draw their parameters after those of plain layers."""
    if similarity not in (None, "none"):
        raise ValueError(f"`similarity` must be None in a network of {layer}, got {similarity!r}")
    network = cnn9(
        num_classes, in_channels=in_channels, image_size=image_size, width=width, convolution=layer
    )
    for module in network.modules():
        if isinstance(module, RivalLayer):
            module.start()
    return network


RIVALS = {
    "cnn9_condconv": CondConv2d,
    "cnn9_dynamic_filter": DynamicFilter2d,
    "cnn9_deformable": DeformableConv2d,
}
"""The layers of networks, by the network's name."""
MODELS.update({name: partial(rival_cnn9, layer) for name, layer in RIVALS.items()})
WITHOUT_SIMILARITY.update(RIVALS)

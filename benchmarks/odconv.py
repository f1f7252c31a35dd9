"""Omni-dimensional dynamic convolution, written from the formula of its paper."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import KERNEL, PADDING, TAPS

LEAST_HIDDEN = 16


class ODConv2d(nn.Module):
    r"""A kernel for every image: four attentions of the pooled input on each of n kernels.

    $$y = \sum_i \alpha_{w_i}\, (\alpha_f \odot \alpha_c \odot \alpha_s \odot W_i) * x$$

    with $\alpha_w$ over the kernels (softmax) and, shared by them as in the authors' public code,
    $\alpha_f$ over filters, $\alpha_c$ over channels, $\alpha_s$ over taps (sigmoid). Li et al.,
    Omni-Dimensional Dynamic Convolution (https://openreview.net/forum?id=DmpCfq6Mg39), Eq. 2. As in
    that code the convolution is one in groups, an image each.

    Args:
        channels: Of input and output.
        kernels: n.
    """

    def __init__(self, channels: int, kernels: int = 4):
        super().__init__()
        hidden = max(LEAST_HIDDEN, channels // 16)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.over_channels = nn.Linear(hidden, channels)
        self.over_filters = nn.Linear(hidden, channels)
        self.over_taps = nn.Linear(hidden, TAPS)
        self.over_kernels = nn.Linear(hidden, kernels)
        self.weight = nn.Parameter(torch.empty(kernels, channels, channels, KERNEL, KERNEL))
        for kernel in self.weight:
            nn.init.kaiming_normal_(kernel, nonlinearity="relu")

    def attentions(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Over channels, filters, taps and kernels, each (n, ...) for the images of x."""
        hidden = self.squeeze(x)
        return (
            self.over_channels(hidden).sigmoid(),
            self.over_filters(hidden).sigmoid(),
            self.over_taps(hidden).sigmoid(),
            self.over_kernels(hidden).softmax(1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The output (n, c, h, w): channels and filters are weighed on the maps, not the kernel."""
        n, c, *size = x.shape
        channels, filters, taps, over_kernels = self.attentions(x)
        kernel = (over_kernels @ self.weight.flatten(1)).view(n, c, c, TAPS) * taps[:, None, None]
        weighed = (x * channels[..., None, None]).reshape(1, n * c, *size)
        kernel = kernel.view(n * c, c, KERNEL, KERNEL)
        y = F.conv2d(weighed, kernel, padding=PADDING, groups=n).view(n, c, *size)
        return y * filters[..., None, None]

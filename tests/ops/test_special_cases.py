"""The paper's special cases of a neural similarity, each against plain torch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns

GEOMETRY = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
SIZE = (2, 3)
TAPS = 6


def input_of(channels=4):
    return torch.randn(2, channels, 6, 7, dtype=torch.float64)


def layer_of(similarity, in_channels=4, out_channels=6, **options):
    options = {**GEOMETRY, "dtype": torch.float64} | options
    return ns.Conv2d(in_channels, out_channels, SIZE, similarity=similarity, **options)


class InverseNorm(nn.Module):
    """1/‖X‖ for every tap: the predictor of a hyperspherical convolution, without parameters."""

    def __init__(self, geometry, scalars):
        super().__init__()
        self.shape = (scalars, geometry.in_channels, *geometry.kernel_size)

    def forward(self, x):
        return F.conv2d(x.square(), x.new_ones(self.shape), **GEOMETRY).rsqrt()


def test_hyperspherical_convolution_is_a_dynamic_diagonal():
    """m = 1/‖X‖ on kernels W/‖W‖ gives the cosine of kernel and patch (§3.3.1, §6)."""
    spec = ns.Dynamic(ns.Diagonal(residual=False), InverseNorm, init="released")
    layer = layer_of(spec, bias=False)
    lengths = layer.weight.detach().flatten(1).norm(dim=1)
    layer.weight.data /= lengths[:, None, None, None]
    x = input_of() + 0.1
    patches = F.unfold(x, SIZE, GEOMETRY["dilation"], GEOMETRY["padding"], GEOMETRY["stride"])
    kernels = layer.weight.flatten(1) * lengths[:, None] * 3  # their lengths do not matter
    y = F.cosine_similarity(patches[:, None], kernels[None, :, :, None], dim=2)
    assert_close(layer(x).flatten(2), y)


def test_dynamic_filter_network_is_an_unconstrained_dynamic_similarity():
    """A kernel generated at every position, Wᵀ M(x), and applied to the patch there."""

    def generator(geometry, scalars):
        return nn.Conv2d(geometry.in_channels, scalars, SIZE, **GEOMETRY)

    layer = layer_of(ns.Dynamic(ns.Full(residual=False), generator, init="released"))
    x = input_of()
    generated = layer.similarity.predictor(x)
    padded = F.pad(x, (2, 2, 1, 1))
    y = torch.zeros_like(layer(x))
    assert y.shape[2:] == generated.shape[2:]
    for n in range(2):
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                m = generated[n, :, i, j].view(TAPS, TAPS)
                kernels = (layer.weight.flatten(2) @ m).view_as(layer.weight)
                patch = padded[n, :, 2 * i : 2 * i + 2, j : j + 5 : 2]
                y[n, :, i, j] = (kernels * patch).sum((1, 2, 3)) + layer.bias
    assert_close(layer(x), y)

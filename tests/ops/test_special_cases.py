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


def test_a_linear_predictor_makes_a_quadratic_function():
    """§6: with M linear in the patch, the output is homogeneous of degree two."""

    def linear(geometry, scalars):
        return nn.Conv2d(geometry.in_channels, scalars, SIZE, bias=False, **GEOMETRY)

    layer = layer_of(ns.Dynamic(ns.Full(residual=False), linear, init="released"), bias=False)
    x, z = input_of(), input_of()
    assert_close(layer(3 * x), 9 * layer(x))
    assert_close(layer(x + z) + layer(x - z), 2 * layer(x) + 2 * layer(z))  # parallelogram law


STEP = 0.1


def euler_by_hand(x, kernels):
    """x ← x + Δt g(x) for every kernel of g, the right-hand side of x' = g(x, t)."""
    for kernel in kernels:
        x = x + STEP * F.conv2d(x, kernel, padding=1, groups=x.shape[1] // kernel.shape[1])
    return x


def test_static_similarities_take_euler_steps():
    """§5.2: with Wᵀ W̃ the centre tap, Wᵀ (W̃ + M) X = x + Wᵀ M X: a residual network."""
    centre = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    centre[range(4), range(4), 1, 1] = 1
    layers, kernels = [], []
    for _ in range(3):
        spec = ns.Static(ns.Unstructured())
        layer = ns.Conv2d(4, 4, 3, padding=1, bias=False, similarity=spec, dtype=torch.float64)
        weight, m = layer.weight.detach().flatten(1), torch.randn(36, 36, dtype=torch.float64)
        selecting = torch.linalg.pinv(weight) @ centre.flatten(1)
        assert_close(weight @ selecting, centre.flatten(1))
        raw = selecting + STEP * m - torch.eye(36, dtype=torch.float64)
        layer.similarity.raw.data.copy_(raw.flatten())
        layers.append(layer)
        kernels.append((weight @ m).view(4, 4, 3, 3))
    x = input_of()
    assert_close(nn.Sequential(*layers)(x), euler_by_hand(x, kernels))
    assert_close(ns.fold(nn.Sequential(*layers))(x), euler_by_hand(x, kernels))


def test_a_dynamic_similarity_takes_an_euler_step_of_a_nonlinear_equation():
    """The same for M predicted, channel by channel: x' = g(x) with g_c = w_cᵀ M(X) X_c."""
    weight = torch.randn(4, 9, dtype=torch.float64)
    selecting = torch.zeros(4, 9, 9, dtype=torch.float64)
    selecting[:, :, 4] = weight / weight.square().sum(1, keepdim=True)
    kernel = torch.randn(4 * 81, 4, 3, 3, dtype=torch.float64)

    def predicted(x):
        return F.conv2d(x, kernel, padding=1).tanh()

    class SelectingAndPredicted(nn.Module):
        def forward(self, x):
            return selecting.view(-1, 1, 1) + STEP * predicted(x)

    structure = ns.Unshared(ns.Full(residual=False), channels="each")
    spec = ns.Dynamic(structure, lambda *_: SelectingAndPredicted(), init="released")
    options = {"padding": 1, "groups": 4, "bias": False, "dtype": torch.float64}
    layer = ns.Conv2d(4, 4, 3, similarity=spec, **options)
    layer.weight.data.copy_(weight.view(4, 1, 3, 3))
    x = input_of()
    patches = F.unfold(x, 3, padding=1).view(2, 4, 9, 6, 7)
    m = predicted(x).view(2, 4, 9, 9, 6, 7)
    g = torch.einsum("cp,ncpqhw,ncqhw->nchw", weight, m, patches)
    assert_close(layer(x), x + STEP * g)

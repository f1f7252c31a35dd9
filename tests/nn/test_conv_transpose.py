"""The transposed convolution: torch's with a static similarity in its kernel."""

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns

OPTIONS = [
    {},
    {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)},
    {"groups": 2, "stride": 2},
    {"dilation": (2, 1), "padding": 1, "bias": False},
]
SIZE = (2, 3)
STRUCTURES = [ns.Diagonal(), ns.Full(), ns.Symmetric(), ns.Select(), ns.Masked(ns.Full())]
everywhere = pytest.mark.parametrize("options", OPTIONS, ids=str)


def layer_of(similarity, **options):
    return ns.ConvTranspose2d(4, 6, SIZE, similarity=similarity, dtype=torch.float64, **options)


def input_of():
    return torch.randn(2, 4, 5, 4, dtype=torch.float64)


@everywhere
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_is_torchs_with_every_kernel_times_m_and_folds(options, structure):
    layer = layer_of(ns.Static(structure), **options)
    layer.similarity.raw.data.normal_()
    m = layer.similarity.full_matrix()
    kernel = torch.empty_like(layer.weight)
    for c in range(4):
        for o in range(kernel.shape[1]):
            kernel[c, o] = (m.T @ layer.weight[c, o].flatten()).view(SIZE)
    x = input_of()
    known = {name: value for name, value in options.items() if name != "bias"}
    y = F.conv_transpose2d(x, kernel, layer.bias, **known)
    assert_close(layer(x), y)
    fused = layer.fuse()
    assert type(fused) is nn.ConvTranspose2d
    assert_close(fused(x), y)


def test_is_the_gradient_of_the_convolution_that_has_the_same_similarity():
    """Transposed: ⟨conv(x), y⟩ = ⟨x, transposed(y)⟩ for one kernel and one M."""
    transposed = layer_of("static-full", stride=2, padding=1, bias=False)
    transposed.similarity.raw.data.normal_()
    conv = ns.Conv2d(6, 4, SIZE, 2, 1, bias=False, similarity="static-full", dtype=torch.float64)
    conv.load_state_dict(transposed.state_dict())
    x = torch.randn(2, 6, 8, 9, dtype=torch.float64)
    y = torch.randn_like(conv(x))
    back = transposed(y, output_size=[8, 9])
    assert_close((conv(x) * y).sum(), (x * back).sum())


@pytest.mark.parametrize("size", [[9, 10], [8, 12], [2, 6, 9, 11]])
def test_output_size(size):
    layer = layer_of("static-full", stride=(2, 3), padding=(1, 1))
    plain = nn.ConvTranspose2d(4, 6, SIZE, (2, 3), (1, 1), dtype=torch.float64)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = input_of()
    y = layer(x, output_size=size)
    assert y.shape[2:] == tuple(size[-2:])
    assert torch.equal(y, plain(x, output_size=size))
    layer.similarity.raw.data.normal_()
    assert_close(layer(x, output_size=size), layer.fuse()(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size of"):
        layer(x, output_size=[20, 20])


BY_CHANNELS = ns.Static(ns.Unshared(ns.Diagonal(), channels=9))
test_what_is_not_one_static_matrix_is_refused = refusals(
    *(
        (similarity, *sizes, "`similarity` of a transposed convolution must be static")
        for similarity, *sizes in [
            ("dynamic-diagonal", 4, 6, SIZE),
            (ns.Static(ns.Unshared(ns.Diagonal(), channels=2)), 4, 6, SIZE),
            (nn.Identity(), 4, 6, SIZE),
            (ns.Static(ns.Unstructured()), 4, 6, SIZE),
            (BY_CHANNELS, 9, 9, 3),  # as many blocks as there are taps
            (BY_CHANNELS, 9, 18, 3),
        ]
    ),
    call=lambda similarity, *sizes: ns.ConvTranspose2d(*sizes, similarity=similarity),
)

"""Every layer is torch's own with M between its kernel and what the kernel sees."""

from functools import partial

import pytest
import torch
from problems import pairs
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.functional import similarity_conv1d, similarity_conv2d, similarity_conv3d

CONVS = {3: similarity_conv1d, 4: similarity_conv2d, 5: similarity_conv3d}
TRANSPOSED = {"output_padding": (1, 2), "groups": 2, "bias": False, "dilation": (2, 1)}
LAYERS = testing.LAYERS | {
    "ConvTranspose2d of every option": (
        lambda s: ns.ConvTranspose2d(4, 6, (2, 3), (2, 3), (1, 0), similarity=s, **TRANSPOSED),
        (2, 4, 5, 4),
    ),
    "LSTM of three": (lambda s: ns.LSTM(5, 5, 3, bias=False, similarity=s), (4, 2, 5)),
    "Linear of rows": (lambda s: ns.Linear(5, 4, similarity=s), (2, 3, 5)),
}


def made(kind, structure):
    """Every layer that there is, with M away from the identity, and an input."""
    init = "identity" if kind is ns.Static or structure.zero_is_identity else "released"
    similarity = kind(structure, init=init)
    for name, (make, shape) in LAYERS.items():
        case = testing.Case(name, partial(make, similarity), shape, similarity)
        try:
            yield name, case.trained_layer(), case.random_input()
        except testing.NotApplicableError:
            assert name != "Conv2d"


def kernel_by_hand(weight, part):
    """W M: every kernel of a channel with the M of its block."""
    m, geometry = part.full_matrix(), part.geometry
    if m.shape[-1] > geometry.taps:  # not shared at all
        return (weight.flatten(1) @ m).view_as(weight)
    kernels = weight.reshape(len(weight), -1, geometry.taps)
    if part.structure.blocks is None:
        return (kernels @ m).view_as(weight)
    _, block = pairs(kernels, geometry.in_channels, geometry.groups, part.structure.blocks)
    return torch.einsum("ocp,ocpq->ocq", kernels, m[block]).view_as(weight)


@pytest.mark.parametrize("structure", testing.STRUCTURES.values(), ids=testing.STRUCTURES)
def test_a_static_layer_is_torchs_with_w_m_for_its_kernel_and_folds_into_it(structure):
    for name, layer, x in made(ns.Static, structure):
        plain = ns.unconvert(layer)
        for kernel, part in layer.similarities().items():
            getattr(plain, kernel).data.copy_(kernel_by_hand(getattr(layer, kernel), part))
        expected = plain(x)
        assert_close(layer(x), expected, msg=name)
        folded = layer.fuse()
        assert type(folded) is type(plain)
        assert_close(folded(x), expected, msg=name)


DYNAMIC = {name: structure for name, structure in testing.STRUCTURES.items() if structure.dynamic}


@pytest.mark.parametrize("structure", DYNAMIC.values(), ids=DYNAMIC)
def test_a_dynamic_layer_is_the_operator_with_the_m_of_every_patch(structure):
    for name, layer, x in made(ns.Dynamic, structure):
        if isinstance(layer, nn.LSTM):  # see `test_recurrent.py`
            continue
        y, weight, options = layer(x), layer.weight, {}
        if isinstance(layer, nn.Linear):  # a window of one channel over all features
            x, weight = x.reshape(-1, 1, x.shape[-1]), weight[:, None]
        else:
            names = ("stride", "padding", "dilation", "groups")
            options = {option: getattr(layer, option) for option in names}
        m, blocks = layer.similarity.matrix(x), layer.similarity.structure.blocks
        convolve = partial(CONVS[x.dim()], blocks=blocks, backend="reference", **options)
        assert_close(y, convolve(x, weight, m, layer.bias).reshape(y.shape), msg=name)
        assert layer.fuse() is layer


OTHER_SHAPES = (), (6,), (2, 8), (0, 8), (7, 1)
test_errors = refusals(
    *((torch.zeros(shape), r"`input` must be \(\*n, 7\), .* got \(") for shape in OTHER_SHAPES),
    (torch.zeros(2, 7).double(), r"must have the kernel's dtype torch\.float32, got"),
    call=lambda x: ns.Linear(7, 5, similarity="dynamic-diagonal")(x),
)


@pytest.mark.parametrize("similarity", ["dynamic-diagonal", "dynamic-full"])
def test_an_empty_batch_is_as_torchs(similarity):
    layer, x = ns.Linear(5, 4, similarity=similarity), torch.zeros(0, 5)
    layer(x).sum().backward()
    assert not layer.weight.grad.any()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == nn.Linear(5, 4)(x).dtype


@pytest.mark.parametrize("size", [[9, 10], [8, 12], [2, 6, 9, 11]])
def test_output_size_of_a_transposed_convolution(size):
    layer = ns.ConvTranspose2d(4, 6, (2, 3), (2, 3), (1, 1), similarity="static-full").double()
    x = torch.randn(2, 4, 5, 4, dtype=torch.float64)
    y = layer(x, output_size=size)
    assert y.shape[2:] == tuple(size[-2:])
    assert torch.equal(y, ns.unconvert(layer)(x, output_size=size))
    layer.similarity.raw.data.normal_()
    assert_close(layer(x, output_size=size), layer.fuse()(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size of"):
        layer(x, output_size=[20, 20])


BY_CHANNELS = ns.Static(ns.Unshared(ns.Diagonal(), channels=9))
test_a_transposed_convolution_takes_one_static_matrix = refusals(
    *(
        (similarity, *sizes, "`similarity` of a transposed convolution must be static")
        for similarity, *sizes in [
            ("dynamic-diagonal", 4, 6, 3),
            (ns.Static(ns.Unshared(ns.Diagonal(), channels=2)), 4, 6, 3),
            (nn.Identity(), 4, 6, 3),
            (ns.Static(ns.Unstructured()), 4, 6, 3),
            (BY_CHANNELS, 9, 9, 3),  # as many blocks as there are taps
            (BY_CHANNELS, 9, 18, 3),
        ]
    ),
    call=lambda similarity, *sizes: ns.ConvTranspose2d(*sizes, similarity=similarity),
)

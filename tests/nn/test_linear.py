"""The linear layer: torch's with a similarity over its features."""

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns

STRUCTURES = [ns.Diagonal(), ns.Full(), ns.Symmetric(), ns.PositiveSemidefinite()]


OTHER_SHAPES = (), (6,), (2, 8), (0, 8), (7, 1)


def layer_of(similarity, **options):
    return ns.Linear(7, 5, similarity=similarity, dtype=torch.float64, **options)


def input_of(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("structure", [*STRUCTURES, ns.Select()], ids=str)
def test_static_is_w_times_m_and_folds_into_torchs_linear(structure):
    layer = layer_of(ns.Static(structure))
    layer.similarity.raw.data.normal_()
    m = structure.build(layer.geometry())(layer.similarity.raw[None])[0]
    m = torch.diag(m) if m.dim() == 1 else m
    assert m.shape == (7, 7)
    x = input_of(2, 3, 7)
    y = (x @ m.T) @ layer.weight.T + layer.bias
    assert_close(layer(x), y)
    fused = layer.fuse()
    assert type(fused) is nn.Linear
    assert_close(fused.weight, layer.weight @ m)
    assert_close(fused(x), y)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_dynamic_is_w_times_m_of_x_for_every_row(structure):
    layer = layer_of(ns.Dynamic(structure, ns.SphereNet(hidden=3)))
    layer.similarity.gain.data.normal_()
    x = input_of(2, 3, 7)
    net = layer.similarity.predictor
    y = layer(x)
    for i in range(2):
        for j in range(3):
            row = x[i, j]
            mean_square = (row.square().sum() + 1e-4) / 7
            hidden = (net.patch.weight[:, 0] @ row / mean_square.sqrt()).relu()
            raw = (net.last.weight[..., 0] @ hidden + net.last.bias) * layer.similarity.gain
            m = structure.build(layer.geometry())(raw[None])[0]
            mixed = m * row if m.dim() == 1 else m @ row
            assert_close(y[i, j], layer.weight @ mixed + layer.bias)
    assert layer.fuse() is layer


def test_every_output_may_have_a_similarity_of_its_own():
    layer = layer_of(ns.Static(ns.Unshared(ns.Full(), filters="each")))
    layer.similarity.raw.data.normal_()
    m = torch.eye(7, dtype=torch.float64) + layer.similarity.raw.view(5, 7, 7)
    x = input_of(3, 7)
    y = torch.einsum("of,ofg,ng->no", layer.weight, m, x) + layer.bias
    assert_close(layer(x), y)
    assert_close(layer.fuse()(x), y)


test_errors = refusals(
    *((input_of(*shape), r"`input` must be \(\*n, 7\), .* got \(") for shape in OTHER_SHAPES),
    (input_of(2, 7).float(), r"must have the kernel's dtype torch\.float64, got"),
    call=lambda x: layer_of("dynamic-diagonal")(x),
)


@pytest.mark.parametrize("similarity", ["dynamic-diagonal", "dynamic-full"])
def test_an_empty_batch_is_as_torchs(similarity):
    layer, x = ns.Linear(5, 4, similarity=similarity), torch.zeros(0, 5)
    layer(x).sum().backward()
    assert not layer.weight.grad.any()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == nn.Linear(5, 4)(x).dtype

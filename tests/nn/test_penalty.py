"""Penalties on static similarities."""

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns

BLOCKS = ns.Unshared(ns.Diagonal(), channels=2), ns.Unshared(ns.Full(), filters="each")
STRUCTURES = [ns.Diagonal(), ns.Full(), *BLOCKS, ns.Unstructured()]


def network(structure):
    spec = ns.Static(structure)
    layers = [ns.Conv2d(4, 2, (1, 3), similarity=spec), nn.ReLU()]
    linear = ns.Linear(3, 2, similarity="static-full")
    layers += [ns.Conv2d(2, 2, 2, similarity="dynamic-full"), linear]
    model = nn.Sequential(*layers).double()
    for name, parameter in model.named_parameters():
        if name.endswith(".raw"):
            nn.init.normal_(parameter)
    return model


def matrices(model):
    """Every K×K block of every static M, one by one."""
    for layer in (model[0], model[3]):
        yield from layer.similarity.full_matrix().unflatten(-2, (1, -1)).flatten(0, -3)


def trace(m):
    """A function of the matrices of a layer, one or several blocks."""
    assert m.shape[-2] == m.shape[-1]
    return m.diagonal(dim1=-2, dim2=-1).sum()


MEASURES = {
    "l1": lambda m: sum(abs(number) for number in m.flatten().tolist()),
    "nuclear": lambda m: torch.linalg.svdvals(m).sum().item(),
    "deviation": lambda m: (m - torch.eye(len(m))).square().sum().item(),
    trace: lambda m: m.trace().item(),
}


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("measure", MEASURES)
def test_measures_sum_over_blocks_and_layers(structure, measure):
    model = network(structure)
    expected = sum(map(MEASURES[measure], matrices(model)))
    assert ns.penalty(model, measure).item() == pytest.approx(expected)


@pytest.mark.parametrize("measure", ["l1", "nuclear", "deviation"])
def test_gradients(measure):
    model = network(ns.Unshared(ns.Full(), channels=2))
    ns.penalty(model, measure).backward()
    for layer in (model[0], model[3]):
        m = layer.similarity.full_matrix().detach()
        u, _, vh = torch.linalg.svd(m)
        expected = {"l1": m.sign(), "nuclear": u @ vh, "deviation": 2 * (m - torch.eye(3))}[measure]
        assert_close(layer.similarity.raw.grad.view_as(m), expected)
    assert all(p.grad is None for n, p in model.named_parameters() if not n.endswith(".raw"))


def test_a_layer_in_two_places_counts_once_and_the_identity_deviates_by_nothing():
    layer = ns.Conv2d(2, 2, 3, similarity="static-full")
    assert ns.penalty(nn.ModuleList([layer, layer])).item() == 9  # by l1
    assert ns.penalty(layer, "deviation").item() == 0
    assert ns.penalty(ns.LSTM(3, 2, similarity="static-diagonal")).item() == 3 + 2


@pytest.mark.parametrize("similarity", ["none", "dynamic-full"])
def test_a_network_without_static_similarities_has_none(similarity):
    assert ns.penalty(ns.Conv2d(2, 2, 3, similarity=similarity)).item() == 0


test_errors = refusals(
    (lambda: ns.penalty(network(ns.Full()), "l2"), "`measure` must be one of .* function, got 'l2'")
)

"""A network computes with the weights and settings that it has now, whatever wrote them."""

from functools import partial

import numpy as np
import pytest
import torch
from moved import moved
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))
SPECS = {
    "Full": ns.Static(ns.Full()),
    "Select": ns.Static(ns.Select()),
    "Shift": ns.Static(ns.Unshared(ns.Shift(), channels="each")),
    "dynamic": ns.Dynamic(ns.Diagonal()),
}


def network_of(spec):
    layers = ns.Conv2d(4, 6, 3, similarity=spec), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return moved(nn.Sequential(*layers, ns.Linear(6, 5, similarity=spec))).eval()


@torch.no_grad()
def evaluate(network):
    return network(X)


def write_by_numpy(parameter):
    parameter.detach().numpy()[...] *= np.float32(2)


def exchange_memory(parameter):
    for _ in range(2):  # The allocator may hand out the first memory again.
        parameter.data = parameter.data + 1


def load(network, **options):
    state = network.state_dict().items()
    network.load_state_dict({name: torch.randn_like(tensor) for name, tensor in state}, **options)


def to_each(write):
    return pytest.param(lambda network: [*map(write, network.parameters())], id=write.__name__)


WRITES = [
    *map(to_each, (write_by_numpy, exchange_memory)),
    pytest.param(partial(load, assign=True), id="load_state_dict-assign"),
]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("change", WRITES)
def test_evaluation_is_that_of_a_new_copy(change, spec):
    """No kernel is kept: numpy writes without a trace, other memory may lie at the same place."""
    network, twin = network_of(spec), network_of(spec)
    before = evaluate(network)
    change(network)
    twin.load_state_dict({name: value.clone() for name, value in network.state_dict().items()})
    assert torch.equal(evaluate(network), evaluate(twin))
    assert not torch.equal(evaluate(network), before)


def exchange_structure(layer):
    diagonal = type(layer.similarity.spec.structure) is ns.Diagonal
    spec = ns.Diagonal(residual=False) if diagonal else ns.Full(residual=False)
    layer.similarity.structure = spec.build(layer.geometry())


def set_residual(layer):
    layer.similarity.structure.residual = False


@pytest.mark.parametrize("kind", [kind for kind in ns.nn.SIMILARITIES if kind != "none"])
@pytest.mark.parametrize("change", [exchange_structure, set_residual])
def test_settings_of_a_structure(change, kind):
    layer = moved(ns.Conv2d(4, 6, 3, similarity=kind)).eval()
    before = evaluate(layer)
    change(layer)
    m = layer.similarity.matrix(*[X] if kind.startswith("dynamic") else [])
    m = m if kind.startswith("dynamic") else m[None, ..., None, None].expand(2, *m.shape, 4, 3)
    y = evaluate(layer)
    assert_close(y, ns.functional.similarity_conv2d(X, layer.weight, m, layer.bias))
    assert not torch.equal(y, before)

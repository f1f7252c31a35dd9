"""A layer computes with the structure that it has now, whatever changed it."""

import pytest
import torch
from moved import moved
from torch.testing import assert_close

import neural_similarity as ns

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))


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
    before = layer(X)
    change(layer)
    m = layer.similarity.matrix(*[X] if kind.startswith("dynamic") else [])
    m = m if kind.startswith("dynamic") else m[None, ..., None, None].expand(2, *m.shape, 4, 3)
    y = layer(X)
    assert_close(y, ns.functional.similarity_conv2d(X, layer.weight, m, layer.bias))
    assert not torch.equal(y, before)


@pytest.mark.parametrize("kind", [kind for kind in ns.nn.SIMILARITIES if kind != "none"])
def test_evaluation_uses_weights_that_were_written_unseen(kind):
    """Through their storage, of which no counter of versions knows."""
    layer, twin = (moved(ns.Conv2d(4, 6, 3, similarity=kind)).eval() for _ in range(2))
    before = layer(X)
    for parameter in layer.parameters():
        parameter.untyped_storage().copy_((2 * parameter.detach()).untyped_storage())
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(layer(X), twin(X))
    assert not torch.equal(layer(X), before)

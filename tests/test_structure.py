"""Structures: what matrices they make of raw numbers."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.nn import Geometry, format_similarity, parse_similarity

GEOMETRY = Geometry(4, 6, (2, 3), (1, 1), (1, 1), (1, 1))
TAPS = GEOMETRY.taps
STRUCTURES = {
    ns.Diagonal: TAPS,
    ns.Full: TAPS**2,
    ns.Symmetric: TAPS * (TAPS + 1) // 2,
    ns.PositiveSemidefinite: TAPS * (TAPS + 1) // 2,
}
every = pytest.mark.parametrize(
    "spec",
    [structure(residual=r) for structure in STRUCTURES for r in (True, False)],
    ids=str,
)


def matrices(spec, positions=(3, 2)):
    """Random (n, K, K, *positions) of a structure."""
    module = spec.build(GEOMETRY)
    m = module(torch.randn(2, module.scalars, *positions, dtype=torch.float64))
    if isinstance(spec, ns.Diagonal):
        m = torch.diag_embed(m.movedim(1, -1)).movedim((-2, -1), (1, 2))
    assert m.shape == (2, TAPS, TAPS, *positions)
    return m


@every
def test_number_of_scalars_and_the_identity(spec):
    module = spec.build(GEOMETRY)
    assert module.scalars == STRUCTURES[type(spec)]
    m = module(module.initial()[None])[0]
    assert torch.equal(m, torch.ones(TAPS) if m.dim() == 1 else torch.eye(TAPS))
    assert not module.initial().any() == spec.residual
    assert not module.state_dict()


@every
def test_every_position_is_mapped_alike(spec):
    module = spec.build(GEOMETRY)
    raw = torch.randn(2, module.scalars, 3, 4, dtype=torch.float64)
    m = module(raw)
    assert_close(m[1, ..., 2, 1], module(raw[1:, :, 2, 1])[0])


@every
def test_gradients(spec):
    module = spec.build(GEOMETRY)
    raw = torch.randn(1, module.scalars, 2, dtype=torch.float64, requires_grad=True)
    assert spec.exact_gradient
    assert gradcheck(module, raw)


def test_a_full_matrix_is_its_raw_numbers_row_by_row():
    raw = torch.randn(1, TAPS**2)
    m = ns.Full().build(GEOMETRY)(raw)[0]
    assert_close(m, torch.eye(TAPS) + raw.view(TAPS, TAPS))


def test_symmetric_matrices():
    m = matrices(ns.Symmetric())
    assert torch.equal(m, m.transpose(1, 2))
    raw = torch.arange(1.0, 22.0)
    lower = torch.zeros(TAPS, TAPS)
    lower[tuple(torch.tril_indices(TAPS, TAPS))] = raw
    m = ns.Symmetric(residual=False).build(GEOMETRY)(raw[None])[0]
    assert torch.equal(m.tril(), lower)


def test_positive_semidefinite_matrices():
    m = matrices(ns.PositiveSemidefinite()).movedim((1, 2), (-2, -1))
    assert_close(m, m.mT)
    assert torch.linalg.eigvalsh(m).min() > -1e-12
    target = torch.randn(TAPS, 3, dtype=torch.float64)
    target = target @ target.mT + 0.1 * torch.eye(TAPS)
    factor = torch.linalg.cholesky(target)
    module = ns.PositiveSemidefinite(residual=False).build(GEOMETRY)
    raw = factor[tuple(torch.tril_indices(TAPS, TAPS))]
    assert_close(module(raw[None])[0], target)


@every
def test_layers_of_every_structure(spec):
    """Static: equals the operator with its matrix, and folds. Dynamic: starts as the plain one."""
    static = ns.Conv2d(4, 6, (2, 3), padding=1, similarity=ns.Static(spec), dtype=torch.float64)
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    assert_close(static(x), ns.unconvert(static)(x))
    torch.nn.init.normal_(static.similarity.raw)
    m = static.similarity.matrix()
    assert_close(static(x), ns.functional.similarity_conv2d(x, static.weight, m, static.bias, 1, 1))
    assert_close(static.fuse()(x), static(x))
    if spec.residual:
        dynamic = ns.Conv2d(4, 6, (2, 3), padding=1, similarity=ns.Dynamic(spec)).double()
        assert_close(dynamic(x), ns.unconvert(dynamic)(x))


@every
def test_text_round_trip(spec):
    assert parse_similarity(format_similarity(ns.Static(spec))) == ns.Static(spec)

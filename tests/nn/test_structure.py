"""Structures: what matrices they make of raw numbers."""

from dataclasses import replace

import pytest
import torch
from against_float64 import error
from problems import of_kind
from refusals import refusals
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.functional import fold_kernel
from neural_similarity.nn import Geometry

GEOMETRY = Geometry(4, 6, (2, 3), (1, 1), (1, 1), (1, 1))
TAPS = GEOMETRY.taps
STRUCTURES = {ns.Diagonal: 6, ns.Full: 36, ns.Symmetric: 21, ns.PositiveSemidefinite: 21}
SPECS = [structure(residual=r) for structure in STRUCTURES for r in (True, False)]
every = pytest.mark.parametrize("spec", SPECS, ids=str)


def matrices(spec, positions=(3, 2)):
    """Random (n, K, K, *positions) of a structure."""
    module = spec.build(GEOMETRY)
    m = module(torch.randn(2, module.scalars, *positions, dtype=torch.float64))
    m = of_kind("full", m) if isinstance(spec, ns.Diagonal) else m
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
    assert spec.exact_gradient


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_predicted_numbers_times_gains_are_mapped_in_float32_at_least(spec, dtype):
    module = spec.build(GEOMETRY)
    raw, gain = torch.randn(2, module.scalars, 3, 4).to(dtype), torch.randn(module.scalars)
    m = module.predicted(raw, gain)
    assert m.dtype == torch.promote_types(dtype, torch.float32)
    right = module(raw.double() * gain.double().view(-1, 1, 1))
    assert error(m, right) < (1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize(
    ("spec", "dimensions"), [(ns.Diagonal(), 9), (ns.Full(), 81), (ns.Unstructured(), 216)], ids=str
)
def test_dimensions_of_the_kernels_that_an_m_makes(spec, dimensions):
    """Of the 216 of 4 to 6 channels and 3×3 taps: one M for all channels is no dynamic filter."""
    module = spec.build(Geometry(4, 6, (3, 3), (1, 1), (1, 1), (1, 1)))
    weight, raw = torch.randn(6, 36, dtype=torch.float64), torch.eye(module.scalars).double()
    moved = module(raw) - module(torch.zeros_like(raw))
    kernels = [fold_kernel(weight.view(6, 4, 3, 3), m).flatten() for m in moved]
    assert torch.linalg.matrix_rank(torch.stack(kernels)) == dimensions


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


@pytest.mark.parametrize("blocks", [{"channels": 2}, {"channels": "each"}, {"filters": "each"}])
@pytest.mark.parametrize("inner", [ns.Diagonal(), ns.Full(), ns.Symmetric()], ids=str)
def test_every_block_is_the_inner_matrix_of_its_own_numbers(inner, blocks):
    geometry = replace(GEOMETRY, groups=2)
    module, one = ns.Unshared(inner, **blocks).build(geometry), inner.build(geometry)
    (count,) = [{"channels": 4, "filters": 6}[k] if n == "each" else n for k, n in blocks.items()]
    raw = torch.randn(2, count, one.scalars, 3, dtype=torch.float64)
    assert torch.equal(module(raw.flatten(1, 2)), torch.stack([*map(one, raw.unbind(1))], 1))


test_other_errors = refusals(
    (lambda: ns.Dynamic(ns.Unstructured()), "`structure` must not be for static M only, got Unstr"),
    (lambda: ns.LowRank(7).build(GEOMETRY), "`rank` must be at most the 6 taps, got 7"),
    (lambda: ns.LowRank(0), "`rank` must be an integer of at least 1, got 0"),
)
test_blocks_that_do_not_fit_are_refused = refusals(
    (ns.Full(), {}, "exactly one of `channels` and `filters` .*None and None"),
    (ns.Full(), {"channels": 2, "filters": "each"}, "`channels` and `filters` .* 2 and 'each'"),
    (ns.Unshared(ns.Full(), channels=2), {"filters": 2}, "must be that of one block, got Unsh"),
    (ns.Unstructured(), {"filters": 2}, r"must be that of one block, got Unstructured\(\)"),
    (ns.Full(), {"channels": 3}, "`channels` must divide the 4 channels, got 3"),
    (ns.Full(), {"filters": 4}, "`filters` must divide the 6 filters, got 4"),
    (ns.Full(), {"filters": 0}, "`filters` must be an integer of at least 1, got 0"),
    (ns.Full(), {"channels": -1}, "`channels` must be an integer of at least 1, got -1"),
    (ns.Full(), {"channels": "all"}, "`channels` must be an integer of at least 1, got 'all'"),
    (ns.Full, {"channels": 2}, "`structure` of Unshared must be one of Structure, got <class"),
    (ns.Full(), {"filters": 3}, "`filters` must divide `groups` 2 or be a multiple of it for"),
    call=lambda structure, options: ns.Unshared(structure, **options).build(
        replace(GEOMETRY, groups=2)
    ),
)


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_a_low_rank_m_is_the_identity_and_so_many_products(rank):
    module = ns.LowRank(rank).build(GEOMETRY)
    assert module.scalars == 2 * rank * TAPS
    start = module.initial().double().requires_grad_()
    assert torch.equal(module(start[None])[0], torch.eye(TAPS, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(module(start[None])[0][1, 2], start)
    assert gradient.any()
    m = module(torch.randn(2, module.scalars, 3, dtype=torch.float64)).movedim(3, 1)
    ranks = torch.linalg.matrix_rank(m - torch.eye(TAPS), atol=1e-9)
    assert (ranks == rank).all()

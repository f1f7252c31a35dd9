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


def masked(inner, mask, **options):
    module = ns.Masked(inner, **options).build(GEOMETRY).double()
    module.mask.data.copy_(torch.tensor(mask))
    return module


@pytest.mark.parametrize("inner", [ns.Diagonal(), ns.Full()], ids=str)
def test_a_whole_mask_changes_nothing(inner):
    module, plain = ns.Masked(inner).build(GEOMETRY).double(), inner.build(GEOMETRY)
    raw = torch.randn(2, plain.scalars, 3, dtype=torch.float64)
    assert torch.equal(module(raw), plain(raw))


@pytest.mark.parametrize("inner", [ns.Diagonal(), ns.Full()], ids=str)
def test_a_masked_tap_leaves_the_kernel(inner):
    mask = [0.9, 0.4, 0.5, 0.51, -1.0, 2.0]
    module = masked(inner, mask)
    assert module.kernel_shape().tolist() == [1, 0, 0, 1, 0, 1]
    layer = ns.Conv2d(4, 6, (2, 3), similarity=ns.Static(ns.Masked(inner)), dtype=torch.float64)
    layer.similarity.structure.mask.data.copy_(torch.tensor(mask))
    layer.similarity.raw.data.normal_()
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    y = layer(x)
    dead = torch.tensor([0, 1, 1, 0, 1, 0]).view(2, 3).bool()
    layer.weight.data[..., dead] = 100.0
    assert_close(layer(x), y)


def test_one_tap_always_stays():
    assert masked(ns.Full(), [-3.0, -1, -2, -4, -5, -6]).kernel_shape().tolist() == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("inner", [ns.Diagonal(), ns.Full()], ids=str)
@pytest.mark.parametrize("continuous", [True, False])
def test_the_real_mask_takes_the_gradient_of_the_boolean_one(inner, continuous):
    """Eq. 5: the derivative by D_r is that by D, taken at D."""
    module = masked(inner, [0.9, 0.4, 0.5, 0.6, -1.0, 2.0], continuous=continuous)
    raw = torch.randn(1, module.scalars, 2, dtype=torch.float64, requires_grad=True)
    d = module.kernel_shape().detach().requires_grad_()
    r = inner.build(GEOMETRY)(raw)
    expected_m = d.view(-1, *[1] * (r.dim() - 2)) * r
    m = module(raw)
    assert_close(m, expected_m)
    by_mask, by_raw = torch.autograd.grad(m.pow(3).sum(), (module.mask, raw))
    assert_close((by_mask, by_raw), torch.autograd.grad(expected_m.pow(3).sum(), (d, raw)))


def test_masked_layers_learn_their_shape_without_decay():
    spec = ns.Dynamic(ns.Masked(ns.Diagonal()))
    layer = ns.Conv2d(4, 6, 3, similarity=spec)
    assert parse_similarity(format_similarity(spec)) == spec
    groups = {g["name"]: g["params"] for g in ns.parameter_groups(layer, weight_decay=0.1)}
    assert [tuple(p.shape) for p in groups["undecayed"]] == [(9,), (9,)]
    layer(torch.randn(2, 4, 6, 6)).square().sum().backward()
    assert layer.similarity.structure.mask.grad.abs().min() > 0


def test_masks_do_not_nest():
    with pytest.raises(
        ValueError, match=r"`structure` of Masked must be one of Diagonal, .* got Masked"
    ):
        ns.Masked(ns.Masked(ns.Full()))


@every
def test_text_round_trip(spec):
    assert parse_similarity(format_similarity(ns.Static(spec))) == ns.Static(spec)

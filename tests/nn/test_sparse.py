"""Sparse structures: masks, dilations, the largest entries, selections and shifts."""

import math

import pytest
import torch
from refusals import refusals
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.conversion.planning import starts_at_identity
from neural_similarity.nn import Geometry

GEOMETRY = Geometry(4, 6, (2, 3), (1, 1), (1, 1), (1, 1))
TAPS = GEOMETRY.taps


def masked(inner, mask, **options):
    module = ns.Masked(inner, **options).build(GEOMETRY).double()
    module.mask.data.copy_(torch.tensor(mask))
    return module


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
    shape = masked(ns.Full(), [-3.0, -1, -2, -4, -5, -6]).kernel_shape()
    assert shape.tolist() == [0, 1, 0, 0, 0, 0]


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


def test_the_real_mask_has_a_rate_of_its_own():
    gradients = []
    for rate in (1.0, 10.0):
        module = ns.Masked(ns.Diagonal(), rate=rate).build(GEOMETRY)
        module(torch.ones(1, module.scalars)).pow(2).sum().backward()
        assert torch.equal(module.kernel_shape(), torch.ones_like(module.mask))
        gradients.append(module.mask.grad)
    assert_close(gradients[1], 10 * gradients[0])


def test_masked_layers_learn_their_shape_without_decay():
    spec = ns.Dynamic(ns.Masked(ns.Diagonal()))
    layer = ns.Conv2d(4, 6, 3, similarity=spec)
    groups = {g["name"]: g["params"] for g in ns.parameter_groups(layer, weight_decay=0.1)}
    assert [tuple(p.shape) for p in groups["undecayed"]] == [(9,), (9,)]
    layer(torch.randn(2, 4, 6, 6)).square().sum().backward()
    assert layer.similarity.structure.mask.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("inner", "keep"),
    [(ns.Full(), 1), (ns.Full(), 7), (ns.Full(), 36), (ns.Diagonal(), 2)],
    ids=str,
)
@pytest.mark.parametrize("positions", [(), (2, 3)])
def test_sparse_keeps_the_largest_entries_of_every_position(inner, keep, positions):
    module, plain = ns.Sparse(inner, keep=keep).build(GEOMETRY), inner.build(GEOMETRY)
    raw = torch.randn(2, plain.scalars, *positions, dtype=torch.float64)
    m, r = module(raw), plain(raw)
    assert m.shape == r.shape
    entries = plain.scalars
    for sparse, full in zip(
        m.reshape(2, entries, -1).movedim(1, -1).reshape(-1, entries),
        r.reshape(2, entries, -1).movedim(1, -1).reshape(-1, entries),
        strict=True,
    ):
        order = sorted(range(entries), key=lambda i: -abs(full[i].item()))
        expected = [full[i].item() if i in order[:keep] else 0.0 for i in range(entries)]
        assert sparse.tolist() == expected


def test_sparse_keeps_as_many_among_equals_and_starts_at_the_identity():
    module = ns.Sparse(keep=4).build(GEOMETRY)
    m = module(module.initial()[None])
    assert m.count_nonzero() == 4
    assert (m == torch.diag_embed(m.diagonal(dim1=1, dim2=2))).all()
    whole = ns.Sparse(ns.Full(residual=False), keep=TAPS).build(GEOMETRY)
    assert torch.equal(whole(whole.initial()[None])[0], torch.eye(TAPS))
    assert starts_at_identity(ns.Static(ns.Sparse(keep=TAPS)), GEOMETRY)
    assert not starts_at_identity(ns.Static(ns.Sparse(keep=TAPS - 1)), GEOMETRY)


@pytest.mark.parametrize("spec", [ns.Sparse(keep=5), ns.Select(), ns.Shift()], ids=str)
def test_every_entry_takes_the_gradient_of_m(spec):
    """Straight-through: whatever M's gradient is, the raw numbers get it unchanged."""
    assert not spec.exact_gradient
    module = spec.build(GEOMETRY)
    raw = torch.randn(2, TAPS**2, 3, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(2, TAPS, TAPS, 3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((module(raw) * direction).sum(), raw)
    assert torch.equal(gradient, direction.flatten(1, 2))


@pytest.mark.parametrize("positions", [(), (2, 3)])
def test_a_selection_has_one_entry_in_every_row_and_a_shift_one_in_all(positions):
    """At the highest score: of those of the row, which start at I, or of all."""
    raw = torch.randn(2, TAPS, TAPS, *positions, dtype=torch.float64)
    scores = raw + torch.eye(TAPS, dtype=raw.dtype).view(TAPS, TAPS, *[1] * len(positions))
    m = ns.Select().build(GEOMETRY)(raw.flatten(1, 2))
    assert torch.equal(m, F.one_hot(scores.argmax(2), TAPS).movedim(-1, 2).double())
    m = ns.Shift().build(GEOMETRY)(raw.flatten(1, 2)).flatten(1, 2)
    assert torch.equal(m, F.one_hot(raw.flatten(1, 2).argmax(1), TAPS**2).movedim(-1, 1).double())


def test_shifts_of_channels_start_at_different_taps():
    layer = ns.Conv2d(11, 2, 3, similarity=ns.Static(ns.Unshared(ns.Shift(), channels="each")))
    m = layer.similarity.matrix()
    assert m.shape == (11, 9, 9)
    assert [block.nonzero().tolist() for block in m] == [[[4, b % 9]] for b in range(11)]
    assert not starts_at_identity(ns.Static(ns.Shift()), GEOMETRY)
    single = Geometry(4, 6, (1, 1), (1, 1), (0, 0), (1, 1))
    assert starts_at_identity(ns.Static(ns.Shift()), single)


@pytest.mark.parametrize(("size", "padding"), [((3, 3), 1), ((2, 3), 2), ((3, 1), 0)])
def test_unshared_shifts_are_a_shift_of_channels_and_a_point_convolution(size, padding):
    """Every channel moves so that a position holds what one tap of its window sees."""
    spec = ns.Static(ns.Unshared(ns.Shift(), channels="each"))
    layer = ns.Conv2d(5, 4, size, padding=padding, similarity=spec, dtype=torch.float64)
    layer.similarity.raw.data.normal_()
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64)
    taps, channels = size[0] * size[1], torch.arange(5)
    highest = layer.similarity.raw.view(5, -1).argmax(1)
    point = layer.weight.flatten(2)[:, channels, highest // taps]
    patches = F.unfold(x, size, padding=padding).unflatten(1, (5, taps))
    y = point @ patches[:, channels, highest % taps] + layer.bias[:, None]
    assert_close(layer(x).flatten(2), y)


@pytest.mark.parametrize(
    ("size", "rate"),
    [((5, 3), 1), ((5, 3), 2), ((5, 3), (1, 2)), ((5, 3), (4, 1)), ((3,), 2), ((3, 3, 5), 2)],
    ids=str,
)
@pytest.mark.parametrize("inner", [ns.Diagonal(), ns.Full()], ids=str)
def test_dilation_keeps_every_so_many_rows_of_its_structure(size, rate, inner):
    ones = [1] * len(size)
    geometry, spec = Geometry(4, 6, size, ones, ones, ones), ns.Dilation(inner, rate=rate)
    rates = (rate,) * len(size) if isinstance(rate, int) else rate
    kept = torch.zeros(size, dtype=torch.float64)
    kept[tuple(slice(None, None, step) for step in rates)] = 1
    module, r = spec.build(geometry), inner.build(geometry)
    raw = torch.randn(2, r.scalars, 3, dtype=torch.float64)
    rows = r(raw)
    assert torch.equal(module(raw), kept.view(-1, *[1] * (rows.dim() - 2)) * rows)
    assert starts_at_identity(ns.Static(spec), geometry) == bool(kept.all())
    assert not module.state_dict()


SMALL = Geometry(2, 3, (3, 4), (1, 1), (0, 0), (1, 1))


test_errors = refusals(
    (ns.Sparse, (), {"keep": 0}, "`keep` must be an integer of at least 1, got 0"),
    (ns.Sparse, (), {"keep": 2.5}, "`keep` must be an integer of at least 1, got 2.5"),
    (ns.Sparse, (ns.Symmetric(),), {}, "`structure` of Sparse must be one of Diagonal, Full"),
    (ns.Sparse, (), {"keep": 145}, "`keep` must be at most the 144 entries .* 145"),
    (ns.Sparse, (ns.Diagonal(),), {"keep": 13}, r"12 entries of Diagonal\(\) .* got 13"),
    (ns.Dilation, (), {"rate": 0}, "`rate` must be an integer of at least 1, got 0"),
    (ns.Dilation, (), {"rate": (1, 0)}, "`rate` must be an integer of at least 1, got 0"),
    (ns.Dilation, (ns.Shift(),), {}, "`structure` of Dilation must be one of Diagonal, Full,"),
    (ns.Dilation, (), {"rate": 2}, r"must divide the kernel size \(3, 4\) less one, got 2"),
    (ns.Dilation, (), {"rate": (2,)}, r"kernel size \(3, 4\) less one, got \(2,\)"),
    (ns.Masked, (ns.Full(),), {"threshold": "0.5"}, "`threshold` must be a finite .* '0.5'"),
    (ns.Masked, (ns.Full(),), {"threshold": math.nan}, "`threshold` must be a finite .* nan"),
    (ns.Masked, (ns.Full(),), {"continuous": "no"}, "`continuous` must be True or False, got"),
    (ns.Masked, (ns.Masked(ns.Full()),), {}, "must be one of Diagonal, .* got Masked"),
    (ns.Dynamic, (ns.Shift(),), {}, '`init` "identity" needs a structure with a residual'),
    call=lambda kind, arguments, options: kind(*arguments, **options).build(SMALL),
)


@pytest.mark.parametrize("structure", testing.STRUCTURES.values(), ids=testing.STRUCTURES)
def test_structures_promise_what_they_start_as(structure):
    for geometry in (GEOMETRY, Geometry(4, 6, (1, 1), (1, 1), (0, 0), (1, 1))):
        try:
            found = starts_at_identity(ns.Static(structure), geometry)
        except ValueError:
            continue
        assert found == structure.contains_identity(geometry)

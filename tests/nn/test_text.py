"""Similarities as text, and what importing the package brings along."""

import inspect
from dataclasses import fields

import pytest
from refusals import refusals
from torch import nn

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.nn import format_similarity, parse_similarity

STRUCTURES = [
    *(make(residual=False) for make in (ns.Diagonal, ns.Full, ns.Symmetric)),
    ns.PositiveSemidefinite(residual=False),
    ns.Unshared(ns.PositiveSemidefinite(), filters=2),
    ns.Sparse(ns.Diagonal(residual=False), keep=2),
    ns.Dilation(ns.Symmetric(), rate=(1, 2)),
    ns.Masked(ns.Select(), threshold=0.25, continuous=True),
]
SPECS = [
    *ns.SIMILARITIES.values(),
    *map(ns.Static, (*STRUCTURES, *testing.STRUCTURES.values())),
    ns.Dynamic(ns.Unshared(ns.Masked(ns.Diagonal()), channels="each")),
    ns.Dynamic(ns.Full(), ns.SphereNet(hidden=32)),
    ns.Dynamic(
        ns.Diagonal(residual=False),
        ns.SphereNet(batch_norm=True, batch_norm_eps=1e-5, scales=(0.1, 0.001), eps=0.5),
        init="released",
    ),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_text_round_trip(spec):
    assert parse_similarity(format_similarity(spec)) == spec


def test_specs_are_values():
    assert hash(ns.Dynamic()) == hash(ns.Dynamic(ns.Diagonal(), ns.SphereNet()))
    with pytest.raises(AttributeError):
        ns.Dynamic().init = "released"


test_errors = refusals(
    (
        lambda: format_similarity(ns.Dynamic(ns.Diagonal(), lambda *_: nn.Identity())),
        "`similarity` must be made of .* to be stored",
    )
)
test_bad_text = refusals(
    ("dynamic-diagnal", "nearest: dynamic-diagonal"),
    ("Dynamic(Diagonals())", "unknown part 'Diagonals'.*nearest: Diagonal"),
    ("Diagonal()", r"must be a Static\(...\) or Dynamic\(...\), got 'Diagonal\(\)'"),
    ("Dynamic(heads=3)", r"Dynamic\(heads=3\): .*unexpected keyword argument 'heads'"),
    ("Dynamic(init=open('x'))", "unknown part 'open'"),
    ("Static(__import__('os').system('true'))", "unknown part"),
    ("Dynamic(init=x)", "expected a literal value, got 'x'"),
    ("Static(**{'structure': 3})", "arguments must be named one by one"),
    ("Static({[]: 1})", "expected a literal value, got '{.*: 1}'"),
    ("Static(Full(residual='no'))", "`residual` must be True or False, got 'no'"),
    ("Dynamic(", "must be one of none, static-diagonal"),
    call=lambda text: parse_similarity(text),
)


@pytest.mark.parametrize("name", ns.SIMILARITIES)
def test_the_complete_text_names_every_field_of_every_part(name):
    spec = parse_similarity(name)
    text = format_similarity(spec, complete=True)
    assert parse_similarity(text) == spec
    if spec is not None:
        for part in (spec, spec.structure, *([spec.predictor] if "dynamic" in name else [])):
            assert type(part).__name__ in text
            assert all(f"{field.name}=" in text for field in fields(part))


def test_the_complete_text_keeps_its_meaning_when_a_default_changes(monkeypatch):
    spec = ns.Dynamic(ns.Diagonal(), predictor=ns.SphereNet(hidden=8))
    text, short = format_similarity(spec, complete=True), format_similarity(spec)
    defaults = inspect.unwrap(ns.SphereNet.__init__).__kwdefaults__
    monkeypatch.setitem(defaults, "normalize", "input")
    assert parse_similarity(text) == spec
    assert parse_similarity(short) != spec

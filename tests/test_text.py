"""Similarities as text, and what importing the package brings along."""

import subprocess
import sys

import pytest
from torch import nn

import neural_similarity as ns
from neural_similarity.nn import format_similarity, parse_similarity

SPECS = [
    *ns.SIMILARITIES.values(),
    ns.Static(ns.Full(residual=False)),
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


def test_short_text():
    spec = parse_similarity("Dynamic(Full(), predictor=SphereNet(hidden=8))")
    assert spec == ns.Dynamic(ns.Full(), ns.SphereNet(hidden=8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamic-diagnal", "nearest: dynamic-diagonal"),
        ("Dynamic(Diagonals())", "unknown part 'Diagonals'.*nearest: Diagonal"),
        ("Diagonal()", r"must be a Static\(...\) or Dynamic\(...\), got 'Diagonal\(\)'"),
        ("Dynamic(heads=3)", r"Dynamic\(heads=3\): .*unexpected keyword argument 'heads'"),
        ("Dynamic(init=open('x'))", "unknown part 'open'"),
        ("Static(__import__('os').system('true'))", "unknown part"),
        ("Dynamic(init=x)", "expected a literal value, got 'x'"),
        ("Dynamic(", "must be one of none, static-diagonal"),
    ],
)
def test_bad_text(text, message):
    with pytest.raises(ValueError, match=message):
        parse_similarity(text)


def test_a_users_own_predictor_has_no_text():
    with pytest.raises(ValueError, match=r"`similarity` must be made of .* to be stored"):
        format_similarity(ns.Dynamic(ns.Diagonal(), lambda *_: nn.Identity()))


def test_importing_is_light():
    heavy = ["torchvision", "triton", "matplotlib", "PIL", "tyro", "rich"]
    code = (
        "import sys, torch; before = set(sys.modules); import neural_similarity\n"
        f"print([m for m in {heavy} if m in sys.modules and m not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_attributes_are_errors():
    with pytest.raises(AttributeError, match="no attribute 'convolve'"):
        _ = ns.convolve

"""The shipped laws, on everything that the library ships, and on structures that break them."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from moved import moved

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.nn import StructureModule
from neural_similarity.nn.structure import Structure

CASES = [
    pytest.param(case, id=f"{name}-{case}")
    for name, structure in testing.STRUCTURES.items()
    for case in testing.cases(structure)
]
LONG = [pytest.mark.long]
REPRESENTATIVES = [
    pytest.param(*case.values, id=case.id, marks=LONG if "dynamic LSTM" in case.id else ())
    for case in CASES
    if case.id.split("-")[0] in ("Diagonal", "Full") or case.id.endswith("c Conv2d")
]
PREDICTORS = {
    "cnn": ns.CNN(hidden=3),
    "cnn-sigmoid": ns.CNN(hidden=3, bound="sigmoid"),
    "shared": ns.Shared(channels=2, hidden=3),
    "both-normalised": ns.SphereNet(hidden=3, normalize="both", angle="sigmoid", bounded=True),
    "cheap": ns.SphereNet(hidden=3, last_kernel_size=1, resolution=2),
    "per-image": ns.SphereNet(hidden=3, per_image=True),
    "pooled": ns.Pooled(hidden=3),
    "light": ns.Light(),
    "cnn-normalize": ns.CNN(hidden=3, bound="normalize"),
    "input-normalised": ns.SphereNet(hidden=3, normalize="input"),
    "pooled-normalize": ns.Pooled(hidden=3, bound="normalize"),
}
OF_BATCHES = {
    "shared-batch-norm": ns.Shared(channels=2, hidden=3, batch_norm=True),
    "batch-norm": ns.SphereNet(hidden=3, batch_norm=True),
}
"""Predictors whose M depends on the other images of the batch, for laws that allow that."""


def hold(case, laws):
    """Check the laws of a case; an error says which one does not hold."""
    for law in laws:
        try:
            testing.check(law, case)
        except Exception as error:
            error.add_note(f"{law}: {case}")
            raise


@pytest.mark.parametrize("case", REPRESENTATIVES)
def test_laws(case):
    hold(case, testing.QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_law(case):
    hold(case, testing.LAWS)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_predictors(predictor):
    cases = testing.cases(ns.Diagonal(), PREDICTORS[predictor])
    (case,) = [case for case in cases if str(case) == "dynamic Conv2d"]
    hold(case, testing.QUICK)


def predicted(structure, predictor):
    """A structure with a predictor, or the default, in every layer that takes a dynamic M."""
    cases = testing.cases(structure, (PREDICTORS | OF_BATCHES).get(predictor))
    return [case for case in cases if "dynamic" in str(case) and "Transpose" not in str(case)]


def apply(law, cases):
    """Check that a law applies to cases, and that it holds."""
    for case in cases:
        assert testing.check(law, case) is None, case


@pytest.mark.parametrize("predictor", [*PREDICTORS, *OF_BATCHES])
def test_every_predictor_depends_on_its_input_in_every_layer(predictor):
    apply("depends", predicted(ns.Diagonal(), predictor))


@pytest.mark.parametrize("predictor", ["default", "pooled"])
def test_layers_are_finite_in_every_type_at_every_scale(predictor):
    apply("finite", predicted(ns.Diagonal(), predictor))


@pytest.mark.long
@pytest.mark.parametrize("structure", [ns.Diagonal(), ns.Full()], ids=str)
@pytest.mark.parametrize("predictor", [*PREDICTORS, *OF_BATCHES])
def test_predictors_are_finite_in_every_type_at_every_scale(predictor, structure):
    apply("finite", predicted(structure, predictor))


def others():
    """Layers of maps and of angles, for the laws of any layer."""
    for name in ("static-full", "dynamic-diagonal"):
        yield f"global {name}", partial(ns.GlobalSimilarity, 4, (4, 3), name)
    for normalize in ("softmax", "none"):
        yield f"attention {normalize}", partial(attention, normalize=normalize, fused=False)
    yield "attention of spheres", partial(attention, convolution=ns.SphereConv2d, fused=False)
    for options in ({}, {"angle": "linear"}, {"angle": "sigmoid", "learn_k": True}):
        yield f"sphere {options}", partial(ns.SphereConv2d, 4, 6, 3, 2, 1, **options)


def attention(**options):
    return moved(ns.SelfAttention(4, **options))


@pytest.mark.parametrize(("name", "make"), [*others()])
def test_layers_of_maps_and_of_angles(name, make):
    laws = "gradients", "vmap", "layouts", "copies", "seed"
    hold(testing.Case(name, make, (2, 4, 4, 3), ns.Static()), laws)


@pytest.mark.long
@pytest.mark.parametrize(("name", "make"), [*others(), ("attention, fused", attention)])
def test_programs_of_layers_of_maps_and_of_angles(name, make):
    """Those of `torch.export` for any batch, and any size where the layer has none of its own."""
    hold(testing.Case(name, make, (2, 4, 4, 3), ns.Static()), ("export", "compile"))
    layer, sized = moved(make()).eval(), "global" in name or "none" in name
    sizes = dict.fromkeys((0,) if sized else (0, 2, 3), torch.export.Dim.DYNAMIC)
    x, other = torch.randn(2, 4, 4, 3), torch.randn(3, 4, *((4, 3) if sized else (6, 5)))
    program = torch.export.export(layer, (x,), dynamic_shapes=(sizes,)).module()
    torch.testing.assert_close(program(other), layer(other))


class Sign(torch.nn.Module):
    """A predictor of the sign of an input's average, NaN for zero."""

    def __init__(self, scalars):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(scalars))

    def forward(self, x):
        mean = x.mean(tuple(range(1, x.dim())), keepdim=True)
        shape = (-1, *[1] * (x.dim() - 2))
        return self.weight.view(shape) * (mean / mean.abs())


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ("finite", "output of torch.float64, autocast None, at scale 0.0"),
        ("depends", "M has 2 values over 8 inputs"),
    ],
)
def test_a_sign_for_a_predictor_breaks_both_laws(law, message):
    cases = testing.cases(ns.Diagonal(), lambda _, scalars: Sign(scalars))
    (case,) = [case for case in cases if str(case) == "dynamic Conv2d"]
    with pytest.raises(AssertionError, match=message):
        testing.check(law, case)


@dataclass(frozen=True)
class Broken(Structure):
    """A diagonal structure with a mistake in it."""

    mistake: str

    def build(self, geometry):
        return BrokenModule(geometry.taps, self.mistake)


class BrokenModule(StructureModule):
    def __init__(self, taps, mistake):
        super().__init__(taps)
        self.mistake = mistake
        self.register_buffer("offset", torch.zeros(taps), persistent=mistake == "foreign-key")

    def forward(self, raw):
        if self.mistake == "identity-dropped":
            return raw
        if self.mistake == "gradient":
            return (raw * 2).detach() - raw.detach() + raw * 2 - (raw * 2).detach() + 1
        if self.mistake == "batch-mixed":
            return 1 + raw + raw.mean(0, keepdim=True)
        if self.mistake == "dead":
            return 1 + 0 * raw
        return 1 + raw


@pytest.mark.parametrize(
    ("mistake", "law", "kind"),
    [
        ("identity-dropped", "identity", "static"),
        ("identity-dropped", "identity", "dynamic"),
        ("gradient", "gradients", "static"),
        ("batch-mixed", "layouts", "dynamic"),
        ("dead", "learns", "static"),
        ("none", "text", "static"),
    ],
)
def test_mistakes_break_a_law(mistake, law, kind):
    cases = {str(case): case for case in testing.cases(Broken(mistake))}
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        testing.check(law, cases[f"{kind} Conv2d"])


def test_a_law_that_does_not_apply_says_why():
    cases = {str(case): case for case in testing.cases(ns.Select())}
    assert "straight-through" in testing.check("gradients", cases["static Conv2d"])
    assert "do not fold" in testing.check("folds", cases["dynamic Conv2d"])
    assert "transposed" in testing.check("copies", cases["dynamic ConvTranspose2d"])


def test_cases_are_a_tuple_that_may_be_gone_through_twice():
    cases = testing.cases(ns.Unstructured())
    assert isinstance(cases, tuple)
    assert [str(case) for case in cases] == [f"static {layer}" for layer in testing.LAYERS]


def test_laws_have_names():
    with pytest.raises(ValueError, match=r"`law` must be one of .*, got 'fold'"):
        testing.check("fold", next(iter(testing.cases(ns.Full()))))

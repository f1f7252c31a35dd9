"""A user's subclasses of our layers: converted, folded and copied; our own go on as before."""

import pickle
from copy import deepcopy

import pytest
import torch
from moved import moved
from refusals import refusals
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import neural_similarity as ns
from neural_similarity.nn import register
from neural_similarity.nn.layer import LAYER_CLASSES


class Plain(nn.Conv2d):
    """A user's own class of torch's layer."""


class Bare(ns.Conv2d):
    """A subclass that says nothing of `plain`."""


class Named(ns.Conv2d):
    plain = nn.Conv2d

    def __init__(self, channels, **options):
        super().__init__(channels, channels, 3, **options)


class Back(ns.Conv2d):
    """A subclass that folds into a user's class."""

    plain = Plain


class Louder(ns.Conv2d):
    plain = nn.Conv2d

    def forward(self, input):
        return 2 * super().forward(input)


MAKE = {
    Bare: lambda **options: Bare(4, 4, 3, **options),
    Named: lambda **options: Named(4, **options),
    Back: lambda **options: Back(4, 4, 3, **options),
}
FOLDED = {Bare: nn.Conv2d, Named: nn.Conv2d, Back: Plain}


def test_defining_a_subclass_leaves_the_registry_and_our_layers_as_they_are():
    assert LAYER_CLASSES[nn.Conv2d] is ns.Conv2d
    assert Plain not in LAYER_CLASSES
    x, layer = torch.randn(2, 4, 5, 5), moved(ns.Conv2d(4, 4, 3, similarity="static-full"))
    y = layer(x)
    torch.testing.assert_close(layer.fold()(x), y)
    assert type(layer) is nn.Conv2d
    assert type(ns.convert(nn.Sequential(layer), "static-full")[0]) is ns.Conv2d


@pytest.mark.parametrize("kind", [ns.Conv2d, Named])
def test_a_second_registration_is_refused(kind):
    with pytest.raises(ValueError, match=r"`plain` of .* that no layer is .* a Conv2d"):
        register(type("Again", (kind,), {"plain": nn.Conv2d}))
    assert LAYER_CLASSES[nn.Conv2d] is ns.Conv2d


LOUDER = ns.convert(nn.Sequential(Louder(4, 4, 3)), "static-full")
test_errors = refusals(
    *(
        (
            lambda members=members: register(type("Mine", (ns.Conv2d,), members)),
            "`plain` of Mine must be a class of modules, got",
        )
        for members in ({}, {"plain": None}, {"plain": int})
    ),
    (LOUDER[0].fuse, r"exactly an ns\.Conv2d .*, got a Louder"),
    (lambda: ns.fold(LOUDER), r"exactly an ns\.Conv2d .*, got a Louder"),
    (lambda: ns.unconvert(LOUDER), r"exactly an ns\.Conv2d .*, got a Louder"),
)


def test_a_registered_class_is_what_its_plain_class_becomes_and_folds_back_to():
    try:
        register(Back)
        model = ns.convert(nn.Sequential(Plain(4, 4, 3), nn.Conv2d(4, 4, 3)), "static-full", "*")
        assert [type(layer) for layer in model] == [Back, ns.Conv2d]
        x = torch.randn(2, 4, 7, 7)
        folded = ns.fold(moved(model))
        assert [type(layer) for layer in folded] == [Plain, nn.Conv2d]
        torch.testing.assert_close(folded(x), model(x))
    finally:
        LAYER_CLASSES.pop(Plain, None)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_subclasses_are_converted_and_copied_as_they_are_and_fold_into_their_plain_class(
    kind, similarity
):
    model, x = nn.Sequential(MAKE[kind]()), torch.randn(2, 4, 5, 5)
    for where in (None, "0", "*", kind, ns.Conv2d, lambda *_: True):
        converted = ns.convert(model, similarity, where)
        assert type(converted[0]) is kind
        torch.testing.assert_close(converted(x), model(x))
    moved(converted)
    for copy in (deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(copy[0]) is kind
        assert torch.equal(copy(x), converted(x))
    assert type(ns.unconvert(converted)[0]) is FOLDED[kind]
    if similarity == "static-full":
        folded = ns.fold(converted)
        assert type(folded[0]) is FOLDED[kind]
        torch.testing.assert_close(folded(x), converted(x))


def test_a_subclass_that_folds_into_a_users_class_is_not_made_smaller():
    layer = Back(4, 4, 3, similarity=ns.Static(ns.Dilation(rate=2)))
    layer.similarity.raw.data.fill_(-1)
    assert type(layer.fold()) is Plain
    selects = Back(4, 4, 3, padding=1, similarity=ns.Static(ns.Select()))
    selects.similarity.raw.data[4::9] += 9
    assert type(selects.fold()) is Plain


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("merged", [False, True])
def test_adapters_leave_a_subclass_the_class_that_it_is(kind, merged, tmp_path):
    backbone, x = nn.Sequential(MAKE[kind]()), torch.randn(2, 4, 5, 5)
    plain = backbone(x)
    adapted = moved(ns.convert(backbone, "static-full"))
    ns.save_adapter(adapted, tmp_path / "a.safetensors")
    switch = ns.adapters(backbone, a=tmp_path / "a.safetensors").use("a", merged)
    torch.testing.assert_close(backbone(x), adapted(x))
    switch.use(None)
    assert type(backbone[0]) is kind
    assert torch.equal(backbone(x), plain)


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_parametrized_layers_of_ours_are_converted(similarity):
    model, x = (
        nn.Sequential(parametrizations.weight_norm(ns.Conv2d(4, 4, 3))),
        torch.randn(2, 4, 5, 5),
    )
    converted = ns.convert(model, similarity)
    assert parametrize.is_parametrized(converted[0])
    torch.testing.assert_close(converted(x), model(x))
    if similarity == "static-full":
        torch.testing.assert_close(ns.fold(moved(converted))(x), converted(x))
        assert parametrize.is_parametrized(converted[0])

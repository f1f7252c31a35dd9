"""Surgery on networks: convert, unconvert, fold, freeze, and the groups of an optimiser."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.nn.utils.prune
from moved import moved
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.nn.modes import evaluation_mode

STATIC = ["static-diagonal", "static-full"]


class Network(nn.Module):
    """A bit of everything: strides, groups, a 1×1, a subclass, and one layer used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.twice = nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=4, bias=False)
        self.again = self.twice
        self.point = nn.Conv2d(8, 8, 1)
        self.special = Special(8, 6, 3, padding="same", padding_mode="circular")
        self.transposed = nn.ConvTranspose2d(6, 4, 3)

    def forward(self, x):
        x = self.again(self.twice(self.norm(self.stem(x))).relu())
        return self.transposed(self.special(self.point(x)).relu())


class Special(nn.Conv2d):
    pass


@pytest.fixture
def network():
    return Network().double()


@pytest.fixture
def x():
    return torch.randn(2, 3, 9, 10, dtype=torch.float64)


def test_conversion_keeps_parameters_hooks_dtype_mode_and_identity(network):
    calls = []
    network.stem.register_forward_hook(lambda *_: calls.append(1))
    network.eval()
    stem, weight = network.stem, network.stem.weight
    converted = ns.convert(network, "dynamic-full", inplace=True)
    assert converted is network
    assert network.stem is stem
    assert network.stem.weight is weight
    assert isinstance(network.stem, ns.Conv2d)
    assert network.again is network.twice
    assert not any(module.training for module in network.modules())
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    network(torch.randn(1, 3, 8, 8, dtype=torch.float64))
    assert calls == [1]


def test_the_plan_says_what_is_skipped_and_why(network):
    plan = ns.plan(network, "dynamic-full")
    assert plan == {
        "stem": None,
        "twice": None,
        "again": None,
        "point": "has a single kernel tap",
        "special": None,
        "transposed": "is a transposed convolution, which takes a static similarity only",
    }
    asked = "is a ConvTranspose2d; name it in `where` to convert it, too"
    assert ns.plan(network, "static-full")["transposed"] == asked
    converted = ns.convert(network, "dynamic-full")
    plan = ns.plan(converted, "dynamic-full")
    assert plan["stem"] == "has a similarity already"
    assert plan["stem.similarity.predictor.last"] == "is part of a similarity"
    assert isinstance(converted.point, nn.Conv2d)
    assert not isinstance(converted.point, ns.Conv2d)


def test_a_class_of_the_same_name_is_told_apart():
    kind = type("Linear", (nn.Linear,), {"__module__": "elsewhere"})
    reason = ns.plan(nn.Sequential(kind(2, 2)), "static-full", nn.Linear)["0"]
    assert reason.startswith("is a elsewhere.Linear, not exactly a torch.nn.Linear; where=elsewh")
    named = nn.ModuleDict({"base_layer": nn.Conv2d(2, 2, 3)})  # as in PEFT's, and in timm's DLA
    assert ns.plan(named, "static-full") == {"base_layer": None}


def test_kernels_above_25_taps_are_full_only_by_name():
    network = nn.Sequential(nn.Conv2d(2, 2, 7), nn.Conv2d(2, 2, 5), nn.Conv2d(2, 2, (2, 13)))
    plan = ns.plan(network, "dynamic-full")
    assert "2401 numbers per position" in plan["0"]
    assert plan["1"] is None
    assert "would predict 676 numbers" in plan["2"]
    for similarity in ("dynamic-diagonal", "static-full"):
        assert not any(ns.plan(network, similarity).values())
    assert isinstance(ns.convert(network, "dynamic-full", where=["0"])[0], ns.Conv2d)


def regrouped():
    layer = ns.Conv2d(4, 6, 3, similarity="dynamic-diagonal")
    layer.groups = 2
    layer(torch.randn(2, 4, 5, 5))


test_conversion_errors = refusals(
    ("static-full", ["point"], "`where` names modules that cannot .*single kernel tap"),
    ("static-full", 3, "`where` must be names of modules, classes, or a function.*, got 3"),
    ("static-full", ["stm"], r"`where` must name layers of the model .*, got \['stm'\]"),
    ("none", None, "`similarity` must be a name or spec of a similarity"),
    (ns.Dynamic(init="released"), None, "`similarity` must start at the identity"),
    ("static-full", nn.Conv2d(2, 2, 3), r"or a function of .*, got Conv2d"),
    ("static-full", [], r"`model` must have a layer .*'stem', .* and \d+ more: is not"),
    ("static-full", lambda *_: False, r"`model` must have a layer .* and \d+ more: is not"),
    ("dynamic", None, "nearest: dynamic-"),
    call=lambda similarity, where: ns.convert(Network(), similarity, where),
)
test_other_errors = refusals(
    (lambda: ns.freeze_backbone(Network()), "`model` must have similarities to train"),
    (
        lambda: ns.freeze_backbone(ns.convert(Network(), "static-full"), "off"),
        '`norm` must be "eval" or "train", got \'off\'',
    ),
    (regrouped, "`groups` must stay 1"),
    *(
        (
            partial(ns.parameter_groups, Network(), **{"weight_decay": 0.1, name: decay}),
            f"`{name}` must be at least 0, got {decay}",
        )
        for name in ("weight_decay", "similarity_decay", "predictor_decay", "sphere_decay")
        for decay in (-1, float("nan"), *[None] * name.startswith(("weight", "similarity")))
    ),
)


@pytest.mark.parametrize("similarity", STATIC)
def test_folding_preserves_the_function(network, x, similarity):
    converted = moved(ns.convert(network, similarity)).eval()
    converted.norm.running_mean.normal_()
    converted.stem.weight.requires_grad_(False)
    folded = ns.fold(converted)
    assert [name for name, p in folded.named_parameters() if not p.requires_grad] == ["stem.weight"]
    assert not [m for m in folded.modules() if isinstance(m, ns.Conv2d)]
    assert folded.again is folded.twice
    assert ns.max_difference(converted, folded, x) <= 1e-12
    assert ns.max_difference(network, folded, x) > 1e-3
    network.load_state_dict(folded.state_dict())
    assert_close(network.eval()(x), folded(x))
    assert isinstance(converted.stem, ns.Conv2d)


@pytest.mark.parametrize("similarity", [*STATIC, "dynamic-diagonal", "dynamic-full"])
def test_batch_norm_fusion_keeps_the_similarity(network, x, similarity):
    """It scales whole kernels, which M commutes with; a fold fuses as any layer of torch's."""
    converted = moved(ns.convert(network, similarity)).eval()
    converted.norm.running_mean.normal_()
    converted.norm.running_var.uniform_(0.5, 2)
    for stem in (converted.stem, converted.stem.fuse().eval()):
        fused = torch.nn.utils.fuse_conv_bn_eval(stem, converted.norm)
        assert type(fused) is type(stem)
        assert_close(fused(x), converted.norm(converted.stem(x)))


def test_what_hooks_compute_is_copied_and_does_not_fold():
    """torch itself copies no tensor that was computed."""
    plain, layer = nn.Conv2d(2, 3, 3), ns.Conv2d(2, 3, 3, similarity="static-full")
    network = nn.Sequential(plain, ns.Conv2d(3, 3, 3, padding=1, similarity="static-full"))
    x = torch.randn(1, 2, 4, 4)
    for part, name in ((plain, "weight"), (layer, "weight"), (network[1].similarity, "raw")):
        torch.nn.utils.prune.random_unstructured(part, name, amount=0.5)
    with pytest.raises(ValueError, match="`weight` must be a parameter to be folded"):
        layer.fold()
    before = network(x)
    converted = ns.convert(network, "static-full")
    assert converted[0].weight_mask is not network[0].weight_mask
    assert torch.equal(converted(x), before)
    assert torch.equal(ns.unconvert(converted)[0].weight, network[0].weight)
    network.cache = [before]
    for change in (lambda m: ns.convert(m, "static-full"), ns.unconvert, ns.fold):
        with pytest.raises(ValueError, match=r"must allow a deep copy: .*inplace=True"):
            change(network)
    del network.cache
    assert_close(ns.convert(network, "static-full", inplace=True)(x), before)
    with torch.no_grad():
        network(x)
    torch.nn.utils.prune.remove(plain, "weight")
    with pytest.raises(ValueError, match="layer '1': `raw` must be a parameter to be folded"):
        ns.fold(network)
    torch.nn.utils.prune.remove(layer, "weight")
    assert_close(ns.fold(moved(layer))(x), layer(x))


def test_a_forward_that_fails_leaves_modes_alone(network):
    frozen = ns.freeze_backbone(ns.convert(network, "static-full")).train()
    with pytest.raises(ValueError, match="expected 4D input"):
        frozen.norm(torch.zeros(2, 8))
    assert frozen.norm.training


def test_a_misspelt_similarity_leaves_the_layer_its_own():
    layer = ns.Conv2d(3, 4, 3, similarity="static-full")
    own = layer.similarity
    with pytest.raises(ValueError, match="nearest: static-full"):
        layer.with_similarity("static-fulll")
    assert layer.similarity is own


def test_layers_of_two_types_share_a_predictor_each():
    layers = [nn.Conv2d(3, 4, 3, dtype=dtype) for dtype in (torch.float32, torch.float64) * 2]
    network = ns.convert(nn.ModuleList(layers), ns.Dynamic(ns.Diagonal(), predictor=ns.Shared()))
    heads = [layer.similarity.predictor.head for layer in network]
    assert heads[0] is heads[2]
    assert heads[1] is heads[3]
    for layer in network:
        layer(torch.randn(1, 3, 5, 5, dtype=layer.weight.dtype))


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-full"])
def test_layers_that_were_changed_by_hand_convert_as_they_are_now(similarity):
    """A stem for grey images, a stride and a padding set as one number, another window."""
    stem, strided = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2)
    up = nn.ConvTranspose2d(4, 4, 3)
    stem.weight = nn.Parameter(stem.weight.sum(1, keepdim=True)[..., :2])
    strided.stride, strided.padding, strided.dilation, up.stride = 1, 2, [2, 2], 2
    plain = nn.Sequential(stem, strided, up).double()
    where = ["0", "1", "2"] if similarity == "static-full" else ["0", "1"]
    network, x = ns.convert(plain, similarity, where), torch.randn(2, 1, 9, 9, dtype=torch.float64)
    assert_close(network(x), plain(x))
    moved(network)
    assert network(x).shape == plain(x).shape
    if similarity == "static-full":
        assert_close(ns.fold(network)(x), network(x))


@pytest.mark.parametrize("structure", [ns.Select(), ns.Unshared(ns.Shift(), channels="each")])
def test_what_was_changed_by_hand_folds_as_it_is(structure):
    layer = ns.Conv2d(3, 4, 3, padding=1, similarity=None)
    layer.weight = nn.Parameter(torch.randn(4, 3, 3, 2))
    layer.stride, layer.dilation, layer.padding = 2, 2, 2
    layer.with_similarity(ns.Static(structure))
    nn.init.normal_(layer.similarity.raw)
    x = torch.randn(2, 3, 9, 9)
    assert_close(ns.fold(layer)(x), layer(x))


def test_dynamic_layers_do_not_fold(network, x):
    converted = ns.convert(network, "static-full", where=["stem"])
    ns.convert(converted, "dynamic-diagonal", where=["twice"], inplace=True)
    with pytest.raises(ValueError, match="cannot be folded, got twice; dynamic='keep'"):
        ns.fold(converted)
    with pytest.raises(ValueError, match='`dynamic` must be "error" or "keep", got \'drop\''):
        ns.fold(converted, dynamic="drop")
    with pytest.raises(ValueError, match="cannot be folded, got the model itself; dynamic="):
        ns.fold(converted.twice)
    folded = ns.fold(moved(converted), dynamic="keep")
    assert type(folded.stem) is nn.Conv2d
    assert isinstance(folded.twice, ns.Conv2d)
    assert converted.twice.fuse() is converted.twice
    assert ns.max_difference(converted, folded, x) <= 1e-12


def test_max_difference_compares_in_evaluation_mode(network, x):
    other = ns.convert(network.train(), "static-full")
    with torch.no_grad():
        other.transposed.bias[1] += 0.25
    assert ns.max_difference(network, other, x) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="`model` and `other` must have outputs of the same shape"):
        ns.max_difference(network, network.stem, x)


class Computing(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def nest(x):
    return {"a": (x, [x.log(), -x.log(), torch.complex(x, x), x > 0, None])}


PAIRS = {
    "in what holds them": (nest, nest, 0),
    "key by key": (lambda x: {"a": x, "b": 2 * x}, lambda x: {"b": 2 * x, "a": x}, 0),
    "numbers": (lambda x: {"a": (x, [x])}, lambda x: {"a": (x, [x + 0.25])}, 0.25),
    "masks": (lambda x: x > 0, lambda x: x > 1, 1),
    "nan": (lambda x: torch.full_like(x, torch.nan), lambda x: x, torch.nan),
    "keys": (lambda x: {"a": x}, lambda x: {"b": x}, r"of the same keys, got \['a'\] and \['b'\]"),
    "shapes": (lambda x: x, lambda x: (x, x[:1]), r"outputs of the same shapes, got \["),
    "text": (lambda _: {"a": "text"}, lambda x: {"a": x}, "and sequences of them, got str"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_max_difference_takes_what_holds_tensors_and_refuses_others(case):
    """Equal infinities do not differ; what is not a number does."""
    first, second, expected = PAIRS[case]
    models, x = map(Computing, (first, second)), torch.tensor([0.0, 1.0, 0.5])
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            ns.max_difference(*models, x)
    else:
        assert ns.max_difference(*models, x) == pytest.approx(expected, nan_ok=True, rel=0, abs=0)


def test_evaluating_switches_modes_by_train():
    """As of torchvision's feature extractors, which have a graph for each mode."""

    class Switch(nn.Module):
        def train(self, mode=True):
            self.graph = "train" if mode else "eval"
            return super().train(mode)

    network = nn.Sequential(Switch(), Switch()).train()
    network[1].eval()
    with evaluation_mode(network):
        assert [part.graph for part in network] == ["eval", "eval"]
    assert [part.graph for part in network] == ["train", "eval"]


def grouped(network, **decays):
    """Names of the parameters and the decay, by group: together all that train, each once."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = ns.parameter_groups(network, weight_decay=0.1, **decays)
    held = [
        parameter for group in torch.optim.SGD(groups).param_groups for parameter in group["params"]
    ]
    assert len(held) == len(set(held))
    assert set(held) == {p for p in network.parameters() if p.requires_grad}
    return {g["name"]: ({names[p] for p in g["params"]}, g["weight_decay"]) for g in groups}


def test_parameter_groups_hold_every_trainable_parameter_once():
    layers = (
        ns.Conv2d(2, 2, 3, similarity="static-full"),
        ns.Conv2d(2, 2, 3, similarity="dynamic-diagonal"),
        nn.BatchNorm2d(2),
        ns.LSTM(2, 2, similarity="dynamic-diagonal"),
    )
    network = nn.Sequential(*layers)
    network[2].bias.requires_grad_(False)
    found = grouped(network, similarity_decay=0.2, predictor_decay=0.0)
    assert found["similarities"] == ({"0.similarity.raw"}, 0.2)
    gains = {
        f"{part}.gain" for part in ("1.similarity", "3.similarity.ih_l0", "3.similarity.hh_l0")
    }
    assert found["undecayed"] == (gains, 0)
    predicting = {name for name, _ in network.named_parameters() if ".predictor." in name}
    assert found["predictors"] == (predicting, 0)
    assert found["weights"][1] == 0.1
    assert grouped(network)["predictors"] == (predicting, 0.1)
    assert [*grouped(nn.Linear(2, 2))] == ["weights"]


def test_parameters_behind_pruning_and_parametrizations_are_in_their_groups():
    masked = ns.Static(ns.Masked(ns.Full()))
    layers = [ns.Conv2d(2, 3, 3, similarity=s) for s in (masked, "dynamic-diagonal")]
    network = nn.Sequential(*layers, ns.SphereConv2d(3, 3, 3))
    torch.nn.utils.prune.random_unstructured(network[0].similarity, "raw", amount=0.5)
    torch.nn.utils.prune.random_unstructured(network[1].similarity, "gain", amount=0.5)
    torch.nn.utils.parametrizations.weight_norm(network[2])
    found = grouped(network, sphere_decay=0.0)
    assert found["undecayed"][0] == {"0.similarity.structure.mask", "1.similarity.gain_orig"}
    assert found["similarities"] == ({"0.similarity.raw_orig"}, 0)
    assert found["spheres"] == ({f"2.parametrizations.weight.original{part}" for part in "01"}, 0)
    assert found["weights"][1] == 0.1


def test_a_parameter_is_in_one_group_though_it_fits_two():
    inner = ns.Conv2d(2, 9, 3, similarity="static-full")
    predictor = nn.Sequential(inner, ns.SphereConv2d(9, 9, 1, angle="sigmoid", learn_k=True))
    layer = ns.Conv2d(2, 2, 3, similarity=ns.Dynamic(predictor=predictor))
    found = grouped(layer, sphere_decay=0.0)
    assert found["similarities"][0] == {"similarity.predictor.0.similarity.raw"}
    assert found["undecayed"][0] == {"similarity.gain", "similarity.predictor.1.log_k"}


def test_a_frozen_backbone_computes_as_in_evaluation_and_survives_copies(network, x):
    network.norm.running_mean.fill_(0.5)
    converted = pickle.loads(pickle.dumps(ns.freeze_backbone(ns.convert(network, "static-full"))))
    assert torch.equal(converted.train()(x), network.eval()(x))
    loose = ns.freeze_backbone(ns.convert(network.train(), "static-full"), norm="train")
    assert torch.equal(loose(x), network(x))


def test_freezing_leaves_modes_alone_and_unfreezing_lets_everything_train(network, x):
    converted = ns.freeze_backbone(ns.convert(network.train(), "static-full"))
    ns.freeze_backbone(converted)
    converted(x)
    assert converted.norm.num_batches_tracked == 0
    assert all(module.training for module in converted.modules())
    for free in (ns.unconvert(converted), ns.unfreeze_backbone(converted)):
        free(x)
        assert free.norm.num_batches_tracked == 1
    assert all(p.requires_grad for p in converted.parameters())


def test_conversions_are_in_the_modes_of_the_original():
    """Also where copying switches them, as in torchvision's feature extractors."""

    class Forgetful(nn.Sequential):
        def __deepcopy__(self, memo):
            return Forgetful(*(copy.deepcopy(part, memo) for part in self))

    network = Forgetful(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)).eval()
    assert copy.deepcopy(network).training
    converted = ns.convert(network, "static-full")
    for changed in (converted, ns.unconvert(converted), ns.fold(converted)):
        assert not any(module.training for module in changed.modules())


@pytest.mark.parametrize("kept", [True, False])
def test_folding_lets_normalisation_go_where_no_similarity_is_left(network, x, kept):
    converted = ns.convert(network, "static-full", ["stem"])
    if kept:
        converted = ns.convert(converted, "dynamic-diagonal", ["twice"])
    folded = ns.fold(ns.freeze_backbone(converted), dynamic="keep").train()
    folded(x)
    assert folded.norm.num_batches_tracked == (0 if kept else 1)


def test_the_normalisation_of_predictors_is_not_held():
    predictor = ns.SphereNet(batch_norm=True, hidden=3)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    converted = ns.freeze_backbone(ns.convert(layers, ns.Dynamic(predictor=predictor))).train()
    converted(torch.randn(2, 2, 6, 6))
    norms = {n: m for n, m in converted.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert norms.pop("1").num_batches_tracked == 0
    assert norms
    assert all(norm.num_batches_tracked == 1 for norm in norms.values())


@pytest.mark.parametrize("kind", [ns.Conv2d, ns.ConvTranspose2d, ns.Linear])
def test_complex_layers_have_no_similarity(kind):
    sizes = (2, 2) if kind is ns.Linear else (2, 2, 3)
    layer = kind(*sizes, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"`similarity` must be None .*complex64"):
        layer.with_similarity("static-diagonal")
    assert layer.with_similarity(None).similarity is None


@pytest.mark.parametrize("predictor", [ns.SphereNet(), ns.Shared()])
def test_a_plan_counts_what_predictors_learn(network, predictor):
    spec = ns.Dynamic(predictor=predictor)
    converted = ns.convert(network, spec)
    learned = {id(p): p.numel() for name, p in converted.named_parameters() if "similarity" in name}
    assert f" a position, {sum(learned.values()):,} parameters" in str(ns.plan(network, spec))
    assert "parameters" not in str(ns.plan(network, "static-full"))


@pytest.mark.parametrize("ask", [ns.convert, ns.plan])
def test_lazy_layers_must_have_run(ask):
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())
    with pytest.raises(ValueError, match=r"`model` must have run once, so that 0\.weight"):
        ask(model, "static-full")
    model(torch.randn(1, 2, 5, 5))
    assert "0" in dict(ns.plan(model, "static-full"))

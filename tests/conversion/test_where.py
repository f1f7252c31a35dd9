"""Which layers `convert` converts: all kinds, by name or by a function, and the reasons why not."""

from dataclasses import dataclass

import pytest
import torch
from moved import moved
from refusals import refusals
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.nn import StructureModule
from neural_similarity.nn.structure import Structure


class Mixed(nn.Module):
    """One of each kind of layer that may have a similarity."""

    def __init__(self):
        super().__init__()
        self.audio = nn.Conv1d(3, 4, 3, padding=1)
        self.image = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.volume = nn.Conv3d(4, 4, (3, 1, 1))
        self.memory = nn.LSTM(5, 6, num_layers=2, batch_first=True)
        self.bridge = nn.LSTM(6, 3, bidirectional=True, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2)
        self.head = nn.Linear(6, 5)
        self.last = Head(5, 2)

    def forward(self, x):
        x = self.up(self.image(self.audio(x)[..., None].expand(-1, -1, -1, 4)))
        x = self.volume(x[..., None]).flatten(1, 2).squeeze(-1)
        return self.last(self.head(self.bridge(self.memory(x)[0])[0]))


class Head(nn.Linear):
    pass


LAYERS = ["audio", "image", "volume", "memory", "head"]


@pytest.fixture
def mixed():
    return Mixed().double()


def of_type(*kinds):
    return lambda _, module: isinstance(module, kinds)


@pytest.mark.parametrize("similarity", [name for name in ns.SIMILARITIES if name != "none"])
def test_where_names_layers_of_every_kind(mixed, similarity):
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    names = LAYERS + ["up"] * similarity.startswith("static")
    converted = ns.convert(mixed, similarity, where=names)
    for name in names:
        kind = getattr(ns, type(mixed.get_submodule(name)).__name__)
        assert type(converted.get_submodule(name)) is kind
    assert (converted(x) - mixed(x)).abs().max() <= 1e-10 * mixed(x).abs().max()
    moved(converted, std=0.3)
    assert (converted(x) - mixed(x)).abs().max() > 1e-6
    if similarity.startswith("static"):
        folded = ns.fold(converted)
        assert [type(m) for m in folded.modules()] == [type(m) for m in mixed.modules()]
        assert ns.max_difference(folded, converted, x) <= 1e-12


def test_where_is_a_function_of_name_and_module(mixed):
    asked = []

    def where(name, module):
        asked.append((name, type(module)))
        return isinstance(module, nn.Linear) or name == "memory"

    plan = ns.plan(mixed, "dynamic-full", where)
    assert {name for name, reason in plan.items() if reason is None} == {"head", "memory"}
    assert plan["image"] == plan["audio"] == "is not chosen by `where`"
    assert "" not in dict(asked)
    assert "last" not in dict(asked)  # only of layers that could be converted
    converted = ns.convert(mixed, "dynamic-full", where)
    assert type(converted.head) is ns.Linear
    assert type(converted.memory) is ns.LSTM
    assert type(converted.image) is nn.Conv2d
    twice = ns.convert(converted, "dynamic-full", where)
    assert twice.state_dict().keys() == converted.state_dict().keys()


def test_reasons_of_every_kind(mixed):
    named = ns.plan(mixed, "dynamic-full", where=[*LAYERS, "up", "bridge", "last"])
    assert {name: reason for name, reason in named.items() if reason} == {
        "up": "is a transposed convolution, which takes a static similarity only",
        "bridge": "is an LSTM with two directions or a projection",
        "last": "is a Head, not exactly a torch.nn.Linear; where=Head, its class, converts it",
    }
    blocks = ns.Static(ns.Unshared(ns.Full(), channels=3))
    plan = ns.plan(mixed, blocks, where=["audio", "image", "head", "memory"])
    assert plan["audio"] is None
    assert plan["image"] == "does not fit: `channels` must divide the 4 channels, got 3"
    assert plan["head"] == "does not fit: `channels` must divide the 1 channels, got 3"
    assert plan["memory"] == plan["head"]
    assert plan["up"] == plan["volume"] == "is not named in `where`"
    every = ns.plan(mixed, "static-full")
    assert {name for name, reason in every.items() if reason is None} == {
        "audio",
        "image",
        "volume",
    }
    assert every["up"] == "is a ConvTranspose2d; name it in `where` to convert it, too"
    narrow = nn.ModuleList([nn.LSTM(1, 4), nn.LSTM(1, 1), nn.Linear(1, 4)])
    assert ns.plan(narrow, "static-full", of_type(nn.LSTM, nn.Linear)) == {
        "0": None, "1": "has a single kernel tap", "2": "has a single kernel tap",
    }  # fmt: skip


@pytest.mark.parametrize("kinds", [(nn.Linear,), (nn.Linear, nn.Conv1d)])
def test_where_is_a_class_or_several(mixed, kinds):
    plan = ns.plan(mixed, "static-full", kinds[0] if len(kinds) == 1 else kinds)
    subclasses = {
        "last": "is a Head, not exactly a torch.nn.Linear; where=Head, its class, converts it",
        "attention.out_proj": "is in a MultiheadAttention, which reads its weight alone",
    }
    assert plan == ns.plan(mixed, "static-full", of_type(*kinds)) | subclasses
    with pytest.raises(ValueError, match="`where` must be names of modules, classes, or a func"):
        ns.plan(mixed, "static-full", (nn.Linear, "audio"))


def test_layers_that_were_tampered_with_are_not_converted(mixed):
    mixed.image.forward = lambda x: x
    plan = ns.plan(mixed, "static-full", ["image", "volume"])
    assert plan["image"].startswith("has a replaced `forward`")
    assert plan["volume"] is None


def test_layers_that_a_transformer_reads_are_refused():
    """In evaluation it takes `linear1.weight` and never calls `linear1`."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plan = ns.plan(nn.TransformerEncoder(encoder, 1), "static-full", nn.Linear)
    for name in ("linear1", "linear2"):
        assert "reads its weight alone" in plan[f"layers.0.{name}"]


BY_FIVES = ns.Static(ns.Unshared(ns.Full(), channels=5))
test_nothing_to_convert_says_how_to = refusals(
    (nn.Linear(2, 2), "static-full", "name layers of other kinds in `where`"),
    (nn.ReLU(), "static-full", "`model` must have a layer to convert .*no convolution"),
    (nn.ConvTranspose2d(2, 2, 3), "static-full", "is a ConvTranspose2d; name it in `where`"),
    (nn.Conv2d(3, 3, 3), BY_FIVES, "divide the 3 channels"),
    call=lambda layer, similarity: ns.convert(nn.Sequential(layer), similarity),
)


NOT_IDENTITY = [
    ns.Static(ns.Unshared(ns.Shift(), channels="each")),
    ns.Static(ns.Dilation()),
    ns.Dynamic(ns.Dilation()),
    ns.Static(ns.Sparse(keep=2)),
]


@pytest.mark.parametrize("similarity", NOT_IDENTITY, ids=str)
@pytest.mark.parametrize("where", [["0"], ["1"], of_type(nn.Linear, nn.LSTM), None])
def test_structures_that_do_not_start_at_the_identity_are_refused(similarity, where):
    network = nn.Sequential(nn.Linear(5, 5), nn.LSTM(5, 5), nn.Conv2d(3, 3, 3))
    with pytest.raises(ValueError, match=r"does not start at the identity: .* of (5|9) taps"):
        ns.convert(network, similarity, where)


class Scaled(StructureModule):
    """`first` + raw for as many taps as there are scalars."""

    def __init__(self, scalars, first):
        super().__init__(scalars)
        self.first = first

    def forward(self, raw):
        return self.first + raw


@dataclass(frozen=True)
class Own(Structure):
    """A structure of a user, right for `first` 1 and nine taps."""

    first: float = 1.0

    def build(self, geometry):
        del geometry
        return Scaled(9, self.first)


@pytest.mark.parametrize("kind", [ns.Static, ns.Dynamic])
def test_structures_of_users_are_tried(kind):
    """On the processor, whatever the device that new tensors go to."""
    network = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 2))
    with torch.device("meta"):
        found = ns.plan(network, kind(Own()))
    assert found["0"] is None
    assert found["1"].startswith("does not fit: M must be (4,) or (4, 4) for 4 taps, got (9,)")
    assert ns.plan(network, "static-full", (name for name in ["0"]))["0"] is None
    found = ns.plan(network, kind(Own(first=0.5)))
    assert found["0"] == "does not start at the identity: Own(first=0.5) of 9 taps"


def test_what_contains_the_identity_in_some_layers_goes_there():
    network = nn.Sequential(nn.Conv2d(2, 2, 5), nn.Conv2d(2, 2, (1, 3)))
    converted = ns.convert(network, ns.Static(ns.Sparse(ns.Diagonal(), keep=3)))
    assert [type(layer) for layer in converted] == [nn.Conv2d, ns.Conv2d]


def test_a_ready_predictor_serves_one_layer():
    twice = nn.Conv2d(3, 3, 3, padding=1)
    network = nn.Sequential(twice, nn.ReLU(), twice, nn.Conv2d(3, 2, 3))
    ready = nn.Conv2d(3, 9, 3, padding=1)
    spec = ns.Dynamic(predictor=ready)
    with pytest.raises(ValueError, match="must make a module for each layer, got one module for 2"):
        ns.convert(network, spec)
    x = torch.randn(2, 3, 9, 10)
    for where in (["0"], ["0", "2"]):  # one layer under two names
        converted = ns.convert(network, spec, where)
        assert converted[0] is converted[2]
        assert converted[0].similarity.predictor is ready
        assert_close(converted(x), network(x))


def test_errors_carry_the_name_of_the_layer(mixed):
    def failing(geometry, _):
        raise ValueError(f"`predictor` must be for 2-d layers, got {len(geometry.kernel_size)}-d")

    spec = ns.Dynamic(predictor=failing)
    with pytest.raises(ValueError, match="layer 'volume': `predictor` must be for 2-d layers"):
        ns.convert(mixed, spec, where=["volume"])
    ready = ns.Dynamic(predictor=nn.Identity())
    with pytest.raises(ValueError, match="layer 'memory': `predictor` of an LSTM must not be"):
        ns.convert(mixed, ready, where=["memory"])
    assert type(mixed.volume) is nn.Conv3d


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (lambda g, n: nn.Conv2d(3, n + 1 - g.stride[0], 3, g.stride, 1), r".*\(1, 9, "),
        (lambda _, n: nn.Conv2d(3, n, 3, 1, 1), r".* output \(1, 9, 4, 4\)"),
        (lambda g, n: nn.Conv2d(2 + g.stride[0], n, 3, 1, 1), r".* channels"),
    ],
    ids=["outputs", "stride", "channels"],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_predictor_that_does_not_fit_is_refused_and_nothing_changes(predictor, message, inplace):
    """It fits the first two layers."""
    strided = nn.Conv2d(3, 4, 3, 2, 1)
    network = nn.Sequential(Renamed(3), ns.Conv2d(3, 3, 3, 1, 1), strided, nn.Conv2d(4, 4, 3))
    kinds = [type(module) for module in network.modules()]
    keys = network.state_dict().keys()
    spec = ns.Dynamic(ns.Diagonal(), predictor)
    with pytest.raises(ValueError, match=f"layer '2': {message}"):
        ns.convert(network, spec, (Renamed, nn.Conv2d), inplace=inplace)
    assert [type(module) for module in network.modules()] == kinds
    assert network.state_dict().keys() == keys
    assert network[1].similarity is None
    assert not hasattr(network[0], "similarity")


def test_trying_a_predictor_changes_no_statistics():
    def predictor(geometry, scalars):
        convolution = nn.Conv2d(geometry.in_channels, scalars, 3, geometry.stride, 1)
        return nn.Sequential(convolution, nn.BatchNorm2d(scalars))

    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1)).train()
    converted = ns.convert(network, ns.Dynamic(ns.Diagonal(), predictor))
    norm = converted[0].similarity.predictor[1]
    assert norm.training
    assert norm.num_batches_tracked == 0


class Doubled(nn.Conv2d):
    def _conv_forward(self, *args):
        return 2 * super()._conv_forward(*args)


class Renamed(nn.Conv2d):
    """No more than another constructor, as torchvision's Conv3DSimple."""

    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1)


class Named(nn.Linear):
    pass


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_subclasses_of_convolutions_are_converted_others_where_their_class_is_named(similarity):
    layers = Renamed(3), Doubled(3, 3, 3), nn.Conv2d(3, 3, 3), Named(4, 4)
    network = nn.Sequential(*layers).double()
    assert [why is None for why in ns.plan(network, similarity, ["*"]).values()] == [True] * 3 + [
        False
    ]
    assert "where=Named, its class, converts it" in ns.plan(network, similarity, nn.Linear)["3"]
    assert ns.plan(network, similarity, Named)["3"] is None
    converted = ns.convert(network, similarity)
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    assert ns.max_difference(converted, network, x) <= 1e-12
    assert [type(layer) for layer in ns.unconvert(converted)] == [type(layer) for layer in layers]
    if similarity == "static-full":
        nn.init.normal_(converted[0].similarity.raw)
        nn.init.normal_(converted[1].similarity.raw)
        assert ns.max_difference(converted, network, x) > 1e-3
        folded = ns.fold(converted)
        assert [type(layer) for layer in folded] == [type(layer) for layer in layers]
        assert ns.max_difference(folded, converted, x) <= 1e-12


def test_convolutions_of_classes_of_their_own_are_in_the_plan():
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        network = timm.create_model("tf_efficientnet_cc_b0_4e")
    reason = ns.plan(network, "static-full")["blocks.4.0.conv_pw"]
    assert reason.startswith("is a CondConv2d with its own `forward`; replace it by")


def test_globs_choose_what_can_be_converted_below(mixed):
    nested = nn.ModuleDict({"a": mixed, "b": nn.Conv2d(2, 2, 3), "c1": nn.Conv2d(2, 2, 1)})
    found = ns.plan(nested, "static-full", ["a.[ai]*", "b"])
    assert {name for name, why in found.items() if why is None} == {"a.audio", "a.image", "b"}
    assert found["c1"] == "is not named in `where`"
    assert found["a.attention.out_proj"].startswith("is in a MultiheadAttention")
    converted = ns.convert(nested, "static-full", "a.h*")
    assert type(converted["a"].head) is ns.Linear
    assert type(converted["b"]) is nn.Conv2d
    for nothing in ("x.*", "a.nothing*"):
        with pytest.raises(ValueError, match=r"`where` must name layers.* got \['"):
            ns.plan(nested, "static-full", [nothing, "b"])


def test_a_plan_is_printed_as_a_table():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, (2, 5)))
    plan = ns.plan(network, "static-full")
    assert plan == {"0": None, "1": "has a single kernel tap", "2": None}
    assert str(plan).splitlines() == [
        "layer  kind    scalars  why not",
        "0      Conv2d       81",
        "1      Conv2d           has a single kernel tap",
        "2      Conv2d      100",
        "2 of 3 layers are converted, 181 scalars",
    ]
    assert "converted, 19 scalars a position, " in str(ns.plan(network, "dynamic-diagonal"))
    assert "0 of 0 layers" in str(ns.plan(nn.Sequential(), "static-full"))
    printed = repr(ns.convert(network, "static-full"))
    assert "Full()), 81 scalars" in printed.replace("structure=", "")
    assert "100 scalars" in printed
    assert "9 scalars a position" in repr(ns.convert(network, "dynamic-diagonal"))

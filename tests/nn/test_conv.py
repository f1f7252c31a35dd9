"""The layer: torch's Conv2d with a similarity in it."""

import pytest
import torch
from moved import moved
from problems import GEOMETRIES
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.testing import LAYERS

NAMES = ["static-diagonal", "static-full", "dynamic-diagonal", "dynamic-full"]
named = pytest.mark.parametrize("similarity", NAMES)


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_dynamic_with_a_constant_predictor_is_static(options, kind):
    structure = {"diagonal": ns.Diagonal(), "full": ns.Full()}[kind]
    options = options | {"dtype": torch.float64}
    spec = ns.Dynamic(structure, ns.SphereNet(hidden=3), init="released")
    dynamic = ns.Conv2d(4, 6, (3, 5), similarity=spec, **options)
    last = dynamic.similarity.predictor.last
    nn.init.zeros_(last.weight)
    last.bias.data.copy_(torch.linspace(-1, 1, len(last.bias)))
    static = ns.Conv2d(4, 6, (3, 5), similarity=ns.Static(structure), **options)
    state = {"weight": dynamic.weight, "bias": dynamic.bias, "similarity.raw": last.bias}
    static.load_state_dict(state)
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64)
    assert_close(dynamic(x), static(x))
    assert_close(static(x), ns.fold(static)(x))


@pytest.mark.parametrize(
    ("kind", "sizes"), [("Conv2d", (4, 6, 3)), ("Linear", (7, 5)), ("LSTM", (7, 5))]
)
@named
def test_same_seed_same_weights_as_torchs_and_the_device_asked_for(similarity, kind, sizes):
    ours, plain = getattr(ns, kind), getattr(nn, kind)
    torch.manual_seed(3)
    layer = ours(*sizes, similarity=similarity)
    torch.manual_seed(3)
    assert all(torch.equal(v, layer.state_dict()[k]) for k, v in plain(*sizes).state_dict().items())
    on_meta = ours(*sizes, similarity=similarity, device="meta")
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}


@pytest.mark.parametrize("similarity", ["none", *NAMES])
def test_autocast_leaves_float64_as_it_is(similarity):
    layer = moved(ns.Conv2d(4, 6, 3, padding=1, similarity=similarity, dtype=torch.float64))
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.float64
    assert torch.equal(y, layer(x))


def test_released_options_of_the_predictor():
    """Batch norm with its eps behind both convolutions, initial scales, no gain."""
    released = ns.SphereNet(normalize="input", batch_norm=True, scales=(0.1, 0.001))
    spec = ns.Dynamic(ns.Diagonal(), released, init="released")
    layer = ns.Conv2d(256, 8, 3, padding=1, similarity=spec)
    predictor = layer.similarity.predictor
    assert layer.similarity.gain is None
    assert predictor.last.bias is None
    assert (predictor.norm1.eps, predictor.norm2.eps) == (1e-3, 1e-3)
    he = (2 / (256 * 9)) ** 0.5, (2 / (64 * 9)) ** 0.5
    assert predictor.patch.weight.std().item() == pytest.approx(0.1 * he[0], rel=0.05)
    assert predictor.last.weight.std().item() == pytest.approx(0.001 * he[1], rel=0.05)
    m = layer.similarity.matrix(torch.randn(4, 256, 8, 8))
    assert 0 < (m - 1).std() < 0.05


def test_predictions_start_at_the_scale_of_the_identity():
    """Whatever the size of the patch, so that the gains learn at one speed in every layer."""
    for channels in (3, 32, 128):
        layer = ns.Conv2d(channels, 8, 3, padding=1, similarity="dynamic-diagonal")
        raw = layer.similarity.predictor(torch.randn(4, channels, 8, 8))
        assert 0.5 < raw.square().mean().sqrt().item() < 2


def test_a_ready_module_serves_as_similarity():
    class Negate(nn.Module):
        def forward(self, layer, x):
            return -layer._conv_forward(x, layer.weight, layer.bias)

    layer = ns.Conv2d(4, 6, 3, similarity=Negate())
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(layer(x), -F.conv2d(x, layer.weight, layer.bias))


def dynamic_layer(*shape, dtype=torch.float32):
    return ns.Conv2d(4, 8, 3, similarity="dynamic-diagonal")(torch.ones(shape, dtype=dtype))


test_errors = refusals(
    (lambda: dynamic_layer(8, 8), r"`input` must be \(n, 4, \*size\) or \(4, \*size\) of 2 sizes"),
    (lambda: dynamic_layer(2, 3, 8, 8), r"of 2 sizes, got \(2, 3, 8, 8\)"),
    (lambda: dynamic_layer(1, 2, 4, 8, 8), r"of 2 sizes, got \(1, 2, 4, 8, 8\)"),
    (lambda: dynamic_layer(2, 4, 8, 8, dtype=torch.uint8), "dtype torch.float32, got torch.u"),
    (lambda: dynamic_layer(2, 4, 8, 8, dtype=torch.float64), "must have the kernel's dtype"),
    (lambda: ns.Conv2d(4, 6, 3, similarity="static-ful"), "nearest: static-full"),
    (lambda: ns.Conv2d(4, 6, 3, similarity=3), "`similarity` must be None, a name, .* got 3"),
    (lambda: ns.Dynamic(init="zero"), "`init` must be one of identity, released, got 'zero'"),
    (lambda: ns.Dynamic(ns.Full(residual=False)), '`init` "identity" needs a structure'),
    (lambda: ns.Static("full"), r"`structure` must be a Structure such as .* got 'full'"),
    (lambda: ns.Static(ns.Full), "`structure` must be a Structure .* got <class .*Full'>"),
    (lambda: ns.Dynamic("full"), r"`structure` must be a Structure such as .* got 'full'"),
    (lambda: ns.Dynamic(ns.Full), "`structure` must be a Structure .* got <class .*Full'>"),
    (lambda: ns.Dynamic(predictor="spherenet"), "`predictor` must be .* got 'spherenet'"),
    (lambda: ns.Dynamic(predictor=ns.SphereNet), "`predictor` must be a callable .* got <clas"),
    (
        lambda: ns.Conv2d(4, 6, 3, similarity=ns.Dynamic(predictor=lambda *_: torch.relu)),
        "`predictor` must make an nn.Module, got <.*relu",
    ),
)


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_windows_of_one_number_in_a_tuple(similarity):
    """torch's layers repeat it for every dimension."""
    plain = nn.Conv2d(3, 4, 3, stride=(2,), padding=(1,), dilation=(2,))
    x = torch.randn(2, 3, 9, 8)
    assert_close(ns.convert(plain, similarity, "")(x), plain(x))
    layer = moved(ns.Conv2d(3, 4, 3, (2,), (1,), (2,), similarity=similarity))
    same = ns.Conv2d(3, 4, 3, 2, 1, 2, similarity=similarity)
    same.load_state_dict(layer.state_dict())
    assert_close(layer(x), same(x))


@pytest.mark.parametrize(
    ("name", "value"),
    [("stride", (2, 2)), ("padding", (1, 1)), ("dilation", (1, 1)), ("padding_mode", "reflect")],
)
def test_a_window_that_has_changed(name, value):
    """Static layers follow, as torch's do; predictors were built for the window of before."""
    layers = {
        similarity: moved(ns.Conv2d(3, 4, 3, padding=2, dilation=2, similarity=similarity))
        for similarity in ("static-diagonal", "dynamic-diagonal")
    }
    for layer in layers.values():
        setattr(layer, name, value)
        if name == "padding_mode":
            layer._reversed_padding_repeated_twice = [2] * 4
    x = torch.randn(2, 3, 8, 8)
    static = layers["static-diagonal"]
    assert_close(static(x), ns.fold(static)(x))
    with pytest.raises(ValueError, match=f"`{name}` must stay .* predictor was built"):
        layers["dynamic-diagonal"](x)


RESET = [
    *NAMES,
    ns.Static(ns.Diagonal(), init="released"),
    ns.Static(ns.Masked(ns.Full())),
    ns.Static(ns.Dilation(ns.Full())),
    ns.Dynamic(ns.Masked(ns.Diagonal()), predictor=ns.SphereNet(batch_norm=True, hidden=4)),
    ns.Dynamic(predictor=ns.Shared(channels=4, hidden=4)),
    ns.Dynamic(predictor=ns.CNN(scales=(0.1, 0.001)), init="released"),
]


def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


@pytest.mark.parametrize("similarity", RESET, ids=str)
def test_parameters_are_reset_as_torchs_are(similarity):
    """`apply` visits parts before wholes; a network without memory begins like a new one."""
    fresh = ns.Conv2d(3, 4, 3, similarity=similarity)
    with torch.device("meta"):
        layer = ns.Conv2d(3, 4, 3, similarity=similarity)
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        parameter.data.fill_(torch.nan)
    layer.apply(reset)
    for (name, new), old in zip(fresh.named_parameters(), layer.parameters(), strict=True):
        if new.unique().numel() <= 2:  # constants of a start: gains, raw numbers, masks, biases
            assert torch.equal(new, old), name
        else:  # drawn: the deviation of few numbers
            assert 0.5 < old.std() / new.std() < 2, name
    layer.load_state_dict(fresh.state_dict())
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(layer.eval()(x), fresh.eval()(x))


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "ConvTranspose2d"])
def test_dynamic_layers_do_not_fold(kind):
    with pytest.raises(ValueError, match="`similarity` must be static for the layer to be folded"):
        LAYERS[kind][0]("dynamic-diagonal").fold()

"""Predictors against their formulas, written out with torch's functions."""

import re
from dataclasses import fields, replace
from functools import partial
from math import nan

import numpy as np
import pytest
import torch
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.functional import sphere_conv2d
from neural_similarity.nn import Geometry
from neural_similarity.nn.text import PREDICTORS

SIZE = (2, 3)
FRAME = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
GEOMETRY = Geometry(4, 6, SIZE, *FRAME.values())
EPS = 1e-4


def predictor_of(spec, scalars=6, geometry=GEOMETRY):
    return spec(geometry, scalars).double()


def input_of(*size):
    return torch.randn(3, 4, *(size or (6, 7)), dtype=torch.float64)


def sphere(x, weight, angle="cosine", k=0.3, eps=EPS, **frame):
    """g(θ) of every kernel and patch, which `ops/test_sphere.py` has by its definition."""
    return sphere_conv2d(x, weight, None, angle=angle, k=k, eps=eps, **frame)


@pytest.mark.parametrize("kind", [ns.SphereNet, ns.CNN])
def test_widths(kind):
    assert predictor_of(kind(), 6).patch.weight.shape == (64, 4, 2, 3)
    assert predictor_of(kind(), 7).patch.weight.shape == (128, 4, 2, 3)
    assert predictor_of(kind(hidden=5), 7).last.weight.shape == (7, 5, 3, 3)
    assert predictor_of(kind(hidden=5, last_kernel_size=1), 7).last.weight.shape == (7, 5, 1, 1)
    assert predictor_of(kind(hidden=5, per_image=True), 7).last.weight.shape == (7, 5, 1, 1)
    assert predictor_of(kind(batch_norm=True)).last.bias is None
    assert predictor_of(kind()).last.bias.tolist() == [0.0] * 6


@pytest.mark.parametrize("angle", ["cosine", "linear", "sigmoid"])
@pytest.mark.parametrize("k", [0.3, 0.1])
@pytest.mark.parametrize("size", [1, 3])
def test_sphere_net_of_angles(angle, k, size):
    options = {"angle": angle, "k": k, "last_kernel_size": size, "eps": 1e-2}
    net = predictor_of(ns.SphereNet(hidden=5, normalize="both", **options))
    net.last.bias.data.normal_()
    x = input_of()
    hidden = sphere(x, net.patch.weight, angle, k, 1e-2, **FRAME).relu()
    last = net.last
    assert_close(net(x), F.conv2d(hidden, last.weight, last.bias, padding=size // 2))


@pytest.mark.parametrize("angle", ["cosine", "linear", "sigmoid"])
def test_bounded_sphere_net(angle):
    options = {"normalize": "both", "angle": angle, "k": 0.2, "eps": 1e-2}
    net = predictor_of(ns.SphereNet(hidden=5, bounded=True, **options))
    assert net.last.bias is None
    x = input_of()
    hidden = sphere(x, net.patch.weight, angle, 0.2, 1e-2, **FRAME).relu()
    assert_close(net(x), sphere(hidden, net.last.weight, angle, 0.2, 1e-2, padding=1))
    net.last.weight.data *= 1e3
    assert net(1e3 * x).abs().max() <= 1


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(("normalize", "numbers"), [("rms", 4 * 2 * 3), ("input", 1)])
def test_sphere_net_with_the_input_normalised_only(normalize, numbers, bounded):
    """By the root mean square of a patch, or by its norm."""
    net = predictor_of(ns.SphereNet(hidden=5, bounded=bounded, normalize=normalize))
    last = net.last
    x = input_of()
    energy = F.conv2d(x.square(), x.new_ones(1, 4, *SIZE), None, **FRAME) + EPS
    hidden = F.conv2d(x, net.patch.weight, None, **FRAME) / (energy / numbers).sqrt()
    plain = F.conv2d(hidden.relu(), last.weight, last.bias, padding=1)
    assert_close(net(x), sphere(hidden.relu(), last.weight, padding=1) if bounded else plain)


def test_patches_of_norm_1_start_as_the_same_function():
    """So that they learn slower: their kernel is √N times as large for the same outputs."""
    x, raw = input_of(), []
    for normalize in ("rms", "input"):
        torch.manual_seed(0)
        net = predictor_of(ns.SphereNet(normalize=normalize))
        raw.append(net(x))
    assert_close(*raw)


BOUNDS = ["tanh", "sigmoid", "normalize", None]
bounds = pytest.mark.parametrize("bound", BOUNDS)


def bounded(raw, bound):
    """The values (n, scalars, ...) that a predictor with a bound outputs."""
    lengths = raw.square().sum(1, keepdim=True).sqrt()
    values = {"tanh": raw.tanh(), "sigmoid": 1 / (1 + (-raw).exp()), "normalize": raw / lengths}
    return values.get(bound, raw)


@bounds
def test_cnn(bound):
    net = predictor_of(ns.CNN(hidden=5, bound=bound))
    net.last.bias.data.normal_()
    x = 10 * input_of()
    hidden = F.conv2d(x, net.patch.weight, None, **FRAME).relu()
    raw = F.conv2d(hidden, net.last.weight, net.last.bias, padding=1)
    assert_close(net(x), bounded(raw, bound))


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_resolution_predicts_every_so_many_positions_and_interpolates(every, stride):
    geometry = Geometry(4, 6, SIZE, stride, (1, 2), (1, 2))
    net = predictor_of(ns.SphereNet(hidden=5, resolution=every), geometry=geometry)
    whole = predictor_of(ns.SphereNet(hidden=5), geometry=geometry)
    whole.load_state_dict(net.state_dict())
    x = input_of(9, 8)
    hidden = whole.patch(x)[..., ::every, ::every].relu()
    coarse = F.conv2d(hidden, net.last.weight, net.last.bias, padding=1)
    raw = net(x)
    size = whole(x).shape[2:]
    assert raw.shape == whole(x).shape
    assert_close(raw[..., ::every, ::every], coarse)
    expected = coarse.detach().numpy()
    for axis, length in zip((2, 3), size, strict=True):
        known = every * np.arange(expected.shape[axis])
        positions = np.arange(length)
        expected = np.apply_along_axis(
            lambda v, p=positions, k=known: np.interp(p, k, v), axis, expected
        )
    assert_close(raw, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


FRAMES = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": 2, "padding": 0, "stride": 3},
    {"kernel_size": 4, "padding": 3, "stride": 3, "dilation": 2},
    {"kernel_size": 4, "padding": "same", "dilation": 2},
    {"kernel_size": 3, "padding": "same", "padding_mode": "circular"},
    {"kernel_size": 3, "padding": 2, "stride": 2, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": "valid", "padding_mode": "replicate"},
    {"kernel_size": 1, "padding": 0},
]
OPTIONS = [{}, {"resolution": 2}, {"resolution": 5}, {"per_image": True}, {"last_kernel_size": 1}]
LAYERS = {1: ns.Conv1d, 2: ns.Conv2d, 3: ns.Conv3d}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("dims", LAYERS)
def test_predictions_are_as_many_as_the_layer_has_outputs(dims, frame, options):
    for kind in (ns.SphereNet, ns.CNN):
        spec = ns.Dynamic(ns.Diagonal(), kind(hidden=2, **options))
        layer = LAYERS[dims](2, 3, similarity=spec, **frame)
        for size in ((7, 8, 9), (10, 7, 8)):
            x = torch.randn(2, 2, *size[:dims])
            plain = ns.unconvert(layer)(x)
            assert layer.similarity.matrix(x).shape[2:] == plain.shape[2:]
            assert_close(layer(x), plain)


def test_per_image_predictions_are_one_an_image():
    net = predictor_of(ns.SphereNet(hidden=5, per_image=True))
    x = input_of()
    raw = net(x)
    hidden = predictor_of(ns.SphereNet(hidden=5)).patch
    hidden.load_state_dict(net.patch.state_dict())
    mean = hidden(x).relu().mean((2, 3))
    one = mean @ net.last.weight.flatten(1).T + net.last.bias
    assert_close(raw, one[..., None, None])
    assert (raw[0] - raw[1]).abs().max() > 1e-3


@bounds
def test_pooled_predictions_are_two_linear_layers_of_averages(bound):
    """Of a single channel they see the deviation too, of a linear layer all features."""
    spec, x, features = ns.Pooled(hidden=5, bound=bound), input_of() + 0.3, input_of(1, 7)[:, 0]
    single = x[:, :1].flatten(1)
    layer = ns.Linear(7, 5, similarity=ns.Dynamic(predictor=spec)).double()
    for net, given, a in (
        (predictor_of(spec, 7), x, x.mean((2, 3))),
        (
            predictor_of(spec, 7, replace(GEOMETRY, in_channels=1)),
            x[:, :1],
            torch.stack([single.mean(1), single.std(1, correction=0)], 1),
        ),
        (layer.similarity.predictor, features, features[:, 0]),
    ):
        direction = a / a.square().mean(1, keepdim=True).sqrt()
        hidden = (direction @ net.first.weight.T + net.first.bias).clamp(min=0)
        raw = hidden @ net.last.weight.T + net.last.bias
        assert_close(net(given).flatten(1), bounded(raw, bound))


@bounds
def test_light_predictions_are_a_small_convolution_over_normalised_patches(bound):
    net, x = predictor_of(ns.Light(reduction=2, bound=bound)), input_of()
    hidden = torch.einsum("oc,nchw->nohw", net.first.weight.flatten(1), x).clamp(min=0)
    patches = F.unfold(hidden, SIZE, FRAME["dilation"], FRAME["padding"], FRAME["stride"])
    lengths = (patches.square().sum(1, keepdim=True) + EPS).sqrt() / patches.shape[1] ** 0.5
    raw = net.last.weight.flatten(1) @ (patches / lengths) + net.last.bias[:, None]
    assert_close(net(x).flatten(2), bounded(raw, bound))
    assert net.first.weight.shape == (8, 4, 1, 1)
    assert ns.Light(reduction=2)(replace(GEOMETRY, in_channels=64), 6).first.out_channels == 32


@pytest.mark.parametrize("kind", [ns.SphereNet, ns.CNN])
def test_batch_normalisation_stands_behind_both_convolutions(kind):
    net = predictor_of(kind(hidden=5, batch_norm=True, batch_norm_eps=0.5))
    x = input_of()
    for mode in (True, False):
        net.train(mode)
        first, second = net.norm1, net.norm2
        own = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in (first, second)]
        statistics = [(None, None)] * 2 if mode else own
        hidden = F.batch_norm(net.patch(x), *statistics[0], training=mode, eps=0.5).relu()
        raw = F.conv2d(hidden, net.last.weight, padding=1)
        raw = F.batch_norm(raw, *statistics[1], training=mode, eps=0.5)
        assert_close(net(x), raw.tanh() if kind is ns.CNN else raw)
    assert (first.num_features, second.num_features) == (5, 6)


@pytest.mark.parametrize("dims", [1, 3])
def test_predictors_of_other_dimensions(dims):
    conv = {1: F.conv1d, 3: F.conv3d}[dims]
    layer = LAYERS[dims](4, 6, 3, 2, 1, similarity=ns.Dynamic(predictor=ns.SphereNet(hidden=5)))
    net = layer.double().similarity.predictor
    x = input_of(*(5, 7, 6)[:dims])
    norm = conv(x.square(), x.new_ones(1, 4, *[3] * dims), None, 2, 1)
    mean_square = (norm + EPS) / (4 * 3**dims)
    hidden = (conv(x, net.patch.weight, None, 2, 1) / mean_square.sqrt()).relu()
    assert_close(net(x), conv(hidden, net.last.weight, net.last.bias, padding=1))


def test_a_users_callable_is_given_the_geometry_and_the_scalars_and_a_module_serves_as_it_is():
    asked, ready = [], nn.Conv2d(4, 36, SIZE, **FRAME)

    def mine(geometry, scalars):
        asked.append((geometry, scalars))
        return nn.Conv2d(4, scalars, SIZE, **FRAME)

    x = input_of()
    for predictor in (mine, ready):
        similarity = ns.Dynamic(ns.Full(), predictor)
        layer = ns.Conv2d(4, 6, SIZE, **FRAME, similarity=similarity, dtype=torch.float64)
        layer.similarity.gain.data.fill_(0.5)
        raw = layer.similarity.predictor(x).unflatten(1, (6, 6))
        m = torch.eye(6, dtype=x.dtype).view(6, 6, 1, 1) + raw / 2
        assert_close(layer.similarity.matrix(x), m)
    assert asked == [(GEOMETRY, 36)]
    assert layer.similarity.predictor is ready


def layer_predicted_by(outputs, stride):
    ready = nn.Conv2d(4, outputs, SIZE, stride, FRAME["padding"], FRAME["dilation"])
    similarity = ns.Dynamic(predictor=ready)
    return ns.Conv2d(4, 6, SIZE, **FRAME, similarity=similarity).double()(input_of())


POOLED = ns.Dynamic(predictor=ns.Pooled())
NO_DIRECTION = "`predictor` Pooled needs at least 2 features, .* got 1"
test_what_a_predictor_must_take_and_output = refusals(
    (
        lambda: layer_predicted_by(5, (2, 1)),
        r"must output \(3, 6, 4, 7\), the scalars of Diagonal\(\).*got \(3, 5, 4, 7\)",
    ),
    (
        lambda: layer_predicted_by(6, (1, 1)),
        r"at every output position of Geometry\(.*stride=\(2, 1\).*\(3, 6, 7, 7\)",
    ),
    (lambda: ns.Linear(1, 4, similarity=POOLED), NO_DIRECTION),
    (lambda: ns.LSTM(1, 4, similarity=POOLED), NO_DIRECTION),
)


WRONG = {
    "tuple": ("a tuple of two numbers", [(1,), ("1", 2), (nan, 1), 0.1]),
    "Literal": ('(one of|"tanh", "sigmoid", "normalize" or None)', ["other"]),
    "int": ("(an integer of at least 1|1 or 3)", [0, 3.5]),
    "bool": ("True or False", ["no", 1]),
    "float": ("positive", [0]),
}
"""What a field must be, by its type, and values that are something else."""
test_errors = refusals(
    *(
        (
            kind,
            {field.name: value},
            rf"`{field.name}` must be {wanted}.* got {re.escape(repr(value))}",
        )
        for kind in PREDICTORS
        for field in fields(kind)
        for wanted, values in [next(w for name, w in WRONG.items() if name in str(field.type))]
        for value in values
    ),
    (
        ns.SphereNet,
        {"normalize": "rms", "angle": "linear"},
        "must be \"both\" for `angle` 'linear'",
    ),
    (ns.SphereNet, {"bounded": True, "batch_norm": True}, "`bounded` must be False with `batch_n"),
    call=lambda kind, options: kind(**options),
)


@pytest.mark.parametrize("normalize", ["rms", "input"])
def test_large_inputs_in_half_precision_do_not_overflow(normalize):
    """Patches of 4,608 numbers of standard deviation 300: √N times the kernel's sums would."""
    predictor = ns.SphereNet(normalize=normalize)
    layer = ns.Conv2d(512, 4, 3, similarity=ns.Dynamic(predictor=predictor)).half()
    x = (300 * torch.randn(2, 512, 5, 5)).half()
    plain = F.conv2d(x, layer.weight, layer.bias)
    assert plain.isfinite().all()
    assert_close(layer(x), plain, rtol=2e-3, atol=2e-3 * plain.abs().max().item())
    hidden = layer.similarity.predictor.patch(x)
    patches = F.unfold(x.double(), 3)
    kernel = layer.similarity.predictor.patch.weight.double().flatten(1)
    factor = 4608**0.5 if normalize == "rms" else 1
    expected = factor * (kernel @ patches) / patches.norm(dim=1, keepdim=True)
    assert_close(hidden.double().flatten(2), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("grows", [False, True])
def test_a_predictor_of_ones_own_that_grows_runs_in_float32(grows):
    """Its sums of 4,608 numbers of 300 are no number of float16."""
    predictor = partial(lambda geometry, n: nn.Conv2d(512, n, *geometry.window))
    vars(predictor).update(GROWS=grows)
    layer = ns.Conv2d(512, 4, 3, similarity=ns.Dynamic(predictor=predictor)).half()
    nn.init.ones_(layer.similarity.predictor.weight)
    assert layer(torch.full((1, 512, 5, 5), 300.0).half()).isfinite().all() == grows

"""Hyperspherical layers: the convolution, the classifier, the orthogonality penalty."""

import copy
import pickle
from math import pi, tanh

import pytest
import torch
from problems import PROBLEMS, ids
from torch import nn
from torch.autograd import gradcheck
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.functional import patch_norm, similarity_conv2d, sphere_conv2d

ANGLES = ["cosine", "linear", "sigmoid"]
everywhere = pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.batch], ids=ids)
every_angle = pytest.mark.parametrize("angle", ANGLES)
GEOMETRIES = [
    {"padding": "same"},
    {"padding": "valid", "stride": 2},
    {"padding": (1, 2), "padding_mode": "reflect", "stride": (2, 1)},
    {"padding": 1, "padding_mode": "replicate", "dilation": (1, 2), "groups": 2},
    {"padding": "same", "padding_mode": "circular", "dilation": 2},
]


def layer_for(problem, **options):
    c, o = problem.channels
    return ns.SphereConv2d(c, o, problem.kernel_size, *problem.geometry, **options).double()


def cosines(layer, x, eps=1e-4):
    """torch's cosine similarity of padded, unfolded patches and kernels, (n, o, h, w).

    One more coordinate of √eps in either vector, where the other has 0, puts eps in the norms.
    """
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    shape = F.conv2d(x, layer.weight, None, layer.stride, 0, layer.dilation, layer.groups).shape
    patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    patches = patches.unflatten(1, (layer.groups, 1, -1))
    kernels = layer.weight.detach().flatten(1).unflatten(0, (layer.groups, -1))[None, ..., None]
    patches, kernels = F.pad(patches, (0, 0, 0, 2)), F.pad(kernels, (0, 0, 0, 2))
    patches[..., -1, :], kernels[..., -2, :] = eps**0.5, eps**0.5
    return F.cosine_similarity(patches, kernels, dim=3, eps=1e-30).reshape(shape)


@everywhere
def test_the_cosine_is_torchs_cosine_similarity_of_patches_and_kernels(problem):
    layer = layer_for(problem)
    x, _ = problem.operands()
    assert_close(layer(x), cosines(layer, x) + layer.bias.view(-1, 1, 1))


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
@pytest.mark.parametrize("angle", ["cosine", "linear"])
def test_padding_modes(options, angle):
    layer = ns.SphereConv2d(4, 6, (3, 5), angle=angle, bias=False, **options).double()
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64)
    expected = cosines(layer, x)
    if angle == "linear":
        expected = 1 - 2 * expected.acos() / pi
    assert_close(layer(x), expected)
    assert_close(layer(x[0]), layer(x)[0])


@pytest.mark.parametrize("k", [0.1, 0.3, 2.0])
@pytest.mark.parametrize("learn_k", [True, False])
def test_functions_of_the_angle(k, learn_k):
    x, weight = PROBLEMS[-4].operands()
    layers = [
        layer_for(PROBLEMS[-4], bias=False, angle="linear"),
        layer_for(PROBLEMS[-4], bias=False, angle="sigmoid", k=k, learn_k=learn_k),
    ]
    for layer in layers:
        layer.weight.data.copy_(weight)
    theta = torch.acos(cosines(layers[0], x))
    assert_close(layers[0](x), -2 / pi * theta + 1)
    # The form of Deep Hyperspherical Learning, Eq. 4.
    sigmoid = (1 - (theta / k - pi / (2 * k)).exp()) / (1 + (theta / k - pi / (2 * k)).exp())
    expected = sigmoid / tanh(pi / (4 * k))
    # k is made in float32, as every parameter.
    assert_close(layers[1](x), expected, rtol=1e-6 if learn_k else 1e-7, atol=1e-7)


def test_a_dynamic_diagonal_similarity_of_one_over_the_patch_norm_is_the_cosine():
    """m = 1/‖X‖ on the kernels W/‖W‖, at every position of a strided, grouped convolution."""
    layer = ns.SphereConv2d(4, 6, (3, 2), (2, 1), 1, bias=False).double()
    x = torch.randn(2, 4, 7, 9, dtype=torch.float64)
    kernels = layer.weight / (layer.weight.square().sum((1, 2, 3), keepdim=True) + 1e-4).sqrt()
    m = patch_norm(x, (3, 2), (2, 1), 1).reciprocal().expand(-1, 6, -1, -1)
    assert_close(layer(x), similarity_conv2d(x, kernels, m, None, (2, 1), 1))


def test_only_the_input_normalised_keeps_the_lengths_of_kernels():
    layer = ns.SphereConv2d(4, 6, 3, padding=1, normalize="input").double()
    x = torch.randn(2, 4, 5, 7, dtype=torch.float64)
    plain = F.conv2d(x, layer.weight, padding=1)
    assert_close(layer(x), plain / patch_norm(x, (3, 3), padding=1) + layer.bias.view(-1, 1, 1))


def test_k_learns_and_stays_positive():
    layer = ns.SphereConv2d(2, 3, 2, angle="sigmoid", k=0.4, learn_k=True).double()
    assert layer.k.item() == pytest.approx(0.4)
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)

    def output(log_k):
        return torch.func.functional_call(layer, {"log_k": log_k}, (x,))

    assert gradcheck(output, (layer.log_k.detach().clone().requires_grad_(),))
    layer(x).square().sum().backward()
    assert layer.log_k.grad != 0
    layer.log_k.data.fill_(-2.0)
    assert layer.k > 0
    assert layer(x).isfinite().all()


@every_angle
def test_zero_patches_and_aligned_vectors_have_finite_gradients(angle):
    layer = ns.SphereConv2d(3, 4, 3, angle=angle, learn_k=angle == "sigmoid", bias=False)
    nn.init.normal_(layer.weight, std=10.0)  # long enough for a cosine of exactly 1
    x = torch.zeros(3, 3, 3, 3)
    x[1], x[2] = 100 * layer.weight[0].detach(), -100 * layer.weight[1].detach()
    x.requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert_close(y[0], torch.zeros_like(y[0]))
    assert y[1, 0] > 0.99
    assert y[2, 1] < -0.99
    assert y.abs().max() <= 1
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("angle", ["linear", "sigmoid"])
def test_under_autocast_angles_are_those_of_float32_cosines(angle):
    """Also next to an aligned patch, where the angle of a bf16 cosine is far off."""
    layer = ns.SphereConv2d(8, 16, 3, angle=angle, bias=False)
    nn.init.normal_(layer.weight)
    x = torch.randn(4, 8, 12, 12)
    x[..., 3:6, 3:6] += 100 * layer.weight[0].detach()
    truth = copy.deepcopy(layer).double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert truth.max() > 0.95
    assert_close(y.double(), truth, rtol=2**-8, atol=1e-5)
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


@every_angle
def test_autocast_reaches_the_output_and_leaves_the_parameters(angle):
    layer = ns.SphereConv2d(4, 6, 3, angle=angle)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(2, 4, 5, 5))
        double = layer.double()(torch.randn(2, 4, 5, 5).double())
    assert y.dtype == torch.bfloat16
    assert double.dtype == torch.float64


@pytest.mark.parametrize("learn_k", [True, False])
def test_copies_and_checkpoints(learn_k):
    layer = ns.SphereConv2d(4, 6, 3, angle="sigmoid", learn_k=learn_k)
    x = torch.randn(2, 4, 5, 6)
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone(x), layer(x))
    report = layer.load_state_dict(nn.Conv2d(4, 6, 3).state_dict(), strict=False)
    assert report.missing_keys == (["log_k"] if learn_k else [])
    assert not report.unexpected_keys
    on_meta = ns.SphereConv2d(4, 6, 3, angle="sigmoid", learn_k=learn_k, device="meta")
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}
    assert ("k=learned" in repr(on_meta)) == learn_k


@every_angle
def test_exports_for_any_size(angle):
    layer = ns.SphereConv2d(4, 6, 3, stride=2, padding=1, angle=angle).eval()
    dim = torch.export.Dim
    sizes = ({0: dim("n"), 2: dim("height", min=4), 3: dim("width", min=4)},)
    program = torch.export.export(layer, (torch.randn(2, 4, 9, 9),), dynamic_shapes=sizes)
    x = torch.randn(3, 4, 11, 8)
    assert_close(program.module()(x), layer(x))


@pytest.mark.slow
@every_angle
def test_compiles_without_a_graph_break(angle):
    layer = ns.SphereConv2d(4, 6, 3, padding=1, angle=angle, learn_k=angle == "sigmoid")
    x = torch.randn(2, 4, 8, 8)
    assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("normalize", ["weight", "both"])
def test_the_classifier_has_class_vectors_of_unit_length(normalize):
    layer = ns.SphereLinear(5, 3, normalize=normalize, scale=7.0, eps=1e-30).double()
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    expected = x @ F.normalize(layer.weight, dim=1).T
    if normalize == "both":
        expected = F.cosine_similarity(x[..., None, :], layer.weight, dim=-1)
    assert_close(layer(x), 7 * expected)
    assert list(layer.state_dict()) == ["weight"]


def test_the_classifier_does_not_see_the_length_of_a_class_vector():
    layer = ns.SphereLinear(5, 3, eps=1e-12).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    before = layer(x)
    layer.weight.data[1] *= 10
    assert_close(layer(x), before)
    zero = ns.SphereLinear(5, 3, normalize="both")
    nn.init.zeros_(zero.weight)
    zero(torch.zeros(1, 5)).sum().backward()
    assert zero.weight.grad.isfinite().all()
    assert copy.deepcopy(zero).scale == pickle.loads(pickle.dumps(zero)).scale == 1.0


def test_orthogonality_is_the_sum_over_pairs_of_kernels():
    layer = ns.SphereConv2d(4, 6, (3, 2), groups=2).double()
    expected = torch.zeros((), dtype=torch.float64)
    for group in layer.weight.detach().flatten(1).view(2, 3, -1):
        for i in range(3):
            for j in range(3):
                cosine = F.cosine_similarity(group[i], group[j], dim=0)
                expected += (cosine - float(i == j)) ** 2
    assert_close(ns.orthogonality(layer), expected)
    raw = layer.weight.detach().flatten(1)
    grams = [raw[rows] @ raw[rows].T - torch.eye(3) for rows in (slice(3), slice(3, 6))]
    assert_close(ns.orthogonality(layer, unit=False), sum(g.square().sum() for g in grams))


def test_orthogonality_of_a_network_counts_every_layer_once():
    first, second = ns.SphereConv2d(3, 8, 3), ns.SphereConv2d(8, 4, 3)
    network = nn.Sequential(first, nn.Conv2d(8, 8, 1), nn.Sequential(second, second))
    total = ns.orthogonality(first) + ns.orthogonality(second)
    assert_close(ns.orthogonality(network), total)
    assert_close(ns.orthogonality([first, second, first]), total)
    nn.init.orthogonal_(first.weight)
    assert_close(ns.orthogonality(first), torch.tensor(0.0), atol=1e-9, rtol=0)


def test_gradient_descent_on_the_penalty_makes_kernels_orthogonal():
    layer = ns.SphereConv2d(2, 4, 2).double()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        ns.orthogonality(layer, unit=False).backward()
        optimizer.step()
    kernels = layer.weight.detach().flatten(1)
    assert_close(kernels @ kernels.T, torch.eye(4, dtype=torch.float64), atol=1e-3, rtol=0)


def test_the_learned_k_does_not_decay():
    layer = ns.SphereConv2d(4, 6, 3, angle="sigmoid", learn_k=True)
    groups = {g["name"]: g["params"] for g in ns.parameter_groups(layer, weight_decay=0.1)}
    assert groups["undecayed"] == [layer.log_k]
    plain = ns.SphereConv2d(4, 6, 3)
    assert [g["name"] for g in ns.parameter_groups(plain, weight_decay=0.1)] == ["weights"]


def test_convert_leaves_hyperspherical_convolutions_alone():
    plan = ns.plan(nn.Sequential(ns.SphereConv2d(3, 4, 3)), "static-full")
    assert plan == {"0": "is a SphereConv2d, not exactly a torch.nn.Conv2d"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ns.SphereConv2d(4, 6, 3, angle="sine"), "`angle` must be one of cosine, linear"),
        (lambda: ns.SphereConv2d(4, 6, 3, normalize="none"), "`normalize` must be one of both"),
        (
            lambda: ns.SphereConv2d(4, 6, 3, normalize="input", angle="linear"),
            '`normalize` must be "both" for `angle` \'linear\', got "input"',
        ),
        (lambda: ns.SphereConv2d(4, 6, 3, k=-1.0), "`k` must be positive, got -1.0"),
        (lambda: ns.SphereConv2d(4, 6, 3, eps=0.0), "`eps` must be positive, got 0.0"),
        (
            lambda: ns.SphereConv2d(4, 6, 3, learn_k=True),
            "`learn_k` needs `angle` \"sigmoid\", got 'cosine'",
        ),
        (
            lambda: ns.SphereLinear(4, 6, normalize="input"),
            '`normalize` must be "weight" or "both", got \'input\'',
        ),
        (lambda: ns.SphereLinear(4, 6, scale=0), "`scale` and `eps` must be positive, got 0"),
        (lambda: ns.SphereLinear(4, 6, eps=-1.0), "`scale` and `eps` must be positive, got 1.0, -"),
        (lambda: ns.orthogonality(nn.Conv2d(4, 6, 3)), "`layers` must hold an ns.SphereConv2d"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_layer_is_the_function():
    layer = ns.SphereConv2d(4, 6, 3, 2, 1, angle="sigmoid", k=0.2, eps=0.5)
    x = torch.randn(2, 4, 7, 7)
    expected = sphere_conv2d(x, layer.weight, layer.bias, 2, 1, angle="sigmoid", k=0.2, eps=0.5)
    assert torch.equal(layer(x), expected)


def test_a_learned_k_is_reset_to_its_start_and_options_are_the_papers():
    layer = ns.SphereConv2d(2, 3, 2, angle="sigmoid", k=0.4, learn_k=True)
    layer.log_k.data.fill_(3.0)
    layer.reset_parameters()
    assert layer.k.item() == pytest.approx(0.4)
    x = torch.randn(2, 4, 5, 5)
    usual = ns.SphereConv2d(4, 6, 3, angle="sigmoid")
    expected = sphere_conv2d(x, usual.weight, usual.bias, angle="sigmoid", k=0.3, eps=1e-4)
    assert torch.equal(usual(x), expected)
    head, features = ns.SphereLinear(5, 3).double(), torch.randn(4, 5).double()
    lengths = (head.weight.square().sum(1) + 1e-4).sqrt()
    assert_close(head(features), features @ head.weight.T / lengths)

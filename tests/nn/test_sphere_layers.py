"""Hyperspherical layers: the convolution, the classifier, the orthogonality penalty."""

import copy

import pytest
import torch
from problems import GEOMETRIES, PROBLEMS, ids
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.functional import sphere_conv2d
from neural_similarity.ops import unit_vectors


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
@pytest.mark.parametrize("angle", ["cosine", "linear"])
def test_padding_modes_are_the_function_of_the_padded_image(options, angle):
    layer = ns.SphereConv2d(4, 6, (3, 5), angle=angle, **options).double()
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64)
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    padded = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    window = layer.stride, 0, layer.dilation, layer.groups
    expected = sphere_conv2d(padded, layer.weight, layer.bias, *window, angle=angle)
    assert_close(layer(x), expected)
    assert_close(layer(x[0]), layer(x)[0])


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


@pytest.mark.parametrize("learn_k", [True, False])
def test_checkpoints(learn_k):
    layer = ns.SphereConv2d(4, 6, 3, angle="sigmoid", learn_k=learn_k)
    report = layer.load_state_dict(nn.Conv2d(4, 6, 3).state_dict(), strict=False)
    assert report.missing_keys == (["log_k"] if learn_k else [])
    assert not report.unexpected_keys
    on_meta = ns.SphereConv2d(4, 6, 3, angle="sigmoid", learn_k=learn_k, device="meta")
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}
    assert ("k=learned" in repr(on_meta)) == learn_k


@pytest.mark.parametrize("unit", [True, False])
def test_orthogonality_is_the_sum_over_pairs_of_kernels(unit):
    layer = ns.SphereConv2d(4, 6, (3, 2), groups=2).double()
    kernels = layer.weight.detach().flatten(1)
    kernels = kernels / kernels.norm(dim=1, keepdim=True) if unit else kernels
    grams = [rows @ rows.T - torch.eye(3) for rows in kernels.split(3)]
    assert_close(ns.orthogonality(layer, unit=unit), sum(g.square().sum() for g in grams))


def test_orthogonality_of_a_network_counts_every_layer_once():
    first, second = ns.SphereConv2d(3, 8, 3), ns.SphereConv2d(8, 4, 3)
    network = nn.Sequential(first, nn.Conv2d(8, 8, 1), nn.Sequential(second, second))
    total = ns.orthogonality(first) + ns.orthogonality(second)
    assert_close(ns.orthogonality(network), total)
    assert_close(ns.orthogonality([first, second, first]), total)
    nn.init.orthogonal_(first.weight)
    assert_close(ns.orthogonality(first), torch.tensor(0.0), atol=1e-9, rtol=0)


test_errors = refusals(
    (lambda: ns.SphereConv2d(4, 6, 3, k=-1.0), "`k` must be positive, got -1.0"),
    (lambda: ns.SphereConv2d(4, 6, 3, learn_k=True), '`learn_k` needs `angle` "sigmoid"'),
    (lambda: ns.orthogonality(nn.Conv2d(4, 6, 3)), "`layers` must hold an ns.SphereConv2d"),
)


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.batch], ids=ids)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": "input", "eps": 0.5},
        {"angle": "linear", "bias": False},
        {"angle": "sigmoid", "k": 0.2},
        {"angle": "sigmoid", "k": 0.2, "learn_k": True},
    ],
    ids=str,
)
def test_the_layer_is_the_function(problem, options):
    (c, o), (x, _) = problem.channels, problem.operands()
    layer = ns.SphereConv2d(c, o, problem.kernel_size, *problem.geometry, **options).double()
    facts = {name: value for name, value in options.items() if name not in ("bias", "learn_k")}
    expected = sphere_conv2d(x, layer.weight, layer.bias, *problem.geometry, **facts)
    # k is made in float32, as every parameter.
    assert_close(layer(x), expected, rtol=1e-6 if "learn_k" in options else 1e-7, atol=1e-7)
    y = layer(x)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.float64


def test_a_learned_k_stays_positive_and_is_reset_to_its_start_and_options_are_the_papers():
    layer = ns.SphereConv2d(2, 3, 2, angle="sigmoid", k=0.4, learn_k=True)
    assert layer.k.item() == pytest.approx(0.4)
    layer.log_k.data.fill_(-2.0)
    assert layer.k > 0
    assert layer(torch.randn(1, 2, 3, 4)).isfinite().all()
    layer.reset_parameters()
    assert layer.k.item() == pytest.approx(0.4)
    x = torch.randn(2, 4, 5, 5)
    usual = ns.SphereConv2d(4, 6, 3, angle="sigmoid")
    expected = sphere_conv2d(x, usual.weight, usual.bias, angle="sigmoid", k=0.3, eps=1e-4)
    assert torch.equal(usual(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("zero", ["weight", "input", "both"])
def test_tiny_eps_leaves_zeros_finite_in_every_type(dtype, zero):
    """1/√eps = 1e6 is no number of float16."""
    options = {"eps": 1e-12, "dtype": dtype}
    for layer in (
        ns.SphereConv2d(4, 4, 3, **options),
        ns.SphereConv2d(4, 4, 3, groups=2, **options),
    ):
        x = torch.randn(2, 4, 5, 5).to(dtype) * (zero == "weight")
        layer.weight.data *= zero == "input"
        assert layer(x).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_unit_vectors_of_zeros_and_large_numbers_are_finite(dtype):
    x = torch.tensor([[0, 0], [3, 4], [3e4, 4e4], [6e-8, 8e-8]], dtype=dtype, requires_grad=True)
    unit = unit_vectors(x, 1)
    expected = torch.tensor([[0, 0], [0.6, 0.8], [0.6, 0.8]]).to(unit)
    torch.testing.assert_close(unit[:3], expected, rtol=0.01, atol=0)
    assert unit[3].detach().norm().item() == pytest.approx(1, rel=0.01)
    unit[:3].sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[0].any()

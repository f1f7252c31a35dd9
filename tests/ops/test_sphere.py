"""Hyperspherical convolution, the patch norm and a predictor's pointwise parts, by definition."""

from functools import partial
from inspect import getmembers, isfunction
from math import pi, tanh
from types import SimpleNamespace

import pytest
import torch
from pointwise_laws import LAWS, MAPS, check_second_derivatives
from problems import PROBLEMS, ids
from refusals import refusals
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.functional import patch_norm, sphere_conv2d
from neural_similarity.nn import Conv2d, SphereConv2d
from neural_similarity.ops import pointwise, pointwise_torch

everywhere = pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.batch], ids=ids)


def patches_of(x, problem):
    """(n, groups, c/groups · K, positions)."""
    stride, padding, dilation, groups = problem.geometry
    patches = F.unfold(x, problem.kernel_size, dilation, padding, stride)
    return patches.unflatten(1, (groups, -1))


@everywhere
def test_patch_norm_is_the_norm_of_the_patch(problem):
    x, _ = problem.operands()
    norm = patch_norm(x, problem.kernel_size, *problem.geometry, eps=0.1)
    expected = (patches_of(x, problem).square().sum(2) + 0.1).sqrt()
    assert_close(norm.flatten(2), expected)


@everywhere
def test_cosine_is_the_cosine_of_patch_and_kernel(problem):
    x, weight = problem.operands()
    bias = torch.randn(weight.shape[0], dtype=x.dtype)
    groups = problem.groups
    patches = patches_of(x, problem).unsqueeze(2)  # n, g, 1, c/g · K, positions
    kernels = weight.flatten(1).view(1, groups, -1, patches.shape[3], 1)
    product = (patches * kernels).sum(3)
    lengths = [(t.square().sum(3) + 1e-4).sqrt() for t in (patches, kernels)]
    expected = (product / lengths[0] / lengths[1]).flatten(1, 2) + bias[:, None]
    y = sphere_conv2d(x, weight, bias, *problem.geometry)
    assert_close(y.flatten(2), expected)


@pytest.mark.parametrize("k", [0.1, 0.3, torch.tensor(0.7, dtype=torch.float64)])
def test_functions_of_the_angle(k):
    x, weight = PROBLEMS[0].operands()
    theta = sphere_conv2d(x, weight, padding=1).acos()
    linear = sphere_conv2d(x, weight, padding=1, angle="linear")
    sigmoid = sphere_conv2d(x, weight, padding=1, angle="sigmoid", k=k)
    assert_close(linear, 1 - 2 * theta / pi)
    assert_close(sigmoid, ((pi / 2 - theta) / (2 * float(k))).tanh() / tanh(pi / (4 * float(k))))


@pytest.mark.parametrize("angle", ["cosine", "linear", "sigmoid"])
def test_bounded_and_finite_at_zero_patches_and_aligned_vectors(angle):
    weight = torch.randn(4, 3, 3, 3)
    x = torch.zeros(3, 3, 3, 3)
    x[1], x[2] = 100 * weight[0], -100 * weight[1]
    x.requires_grad_()
    y = sphere_conv2d(x, weight.requires_grad_(), angle=angle)
    y.sum().backward()
    assert y.abs().max() <= 1
    assert_close(y[0], torch.zeros_like(y[0]))
    assert y[1, 0] > 0.99
    assert y[2, 1] < -0.99
    assert x.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_only_the_input_normalised_is_a_convolution_over_the_patch_norm():
    x, weight = PROBLEMS[0].operands()
    y = sphere_conv2d(x, weight, padding=1, normalize="input")
    assert_close(y, F.conv2d(x, weight, padding=1) / patch_norm(x, (3, 3), padding=1))


@pytest.mark.parametrize("normalize", ["both", "input"])
@pytest.mark.parametrize("groups", [1, 2])
def test_float16_near_its_largest_number(groups, normalize):
    """Products of kernels and patches do not fit; what is infinite in an image stays in it."""
    x = (3e4 * torch.randn(2, 4, 6, 5)).clamp(-6e4, 6e4).half()
    weight = torch.randn(6, 4 // groups, 3, 3).half()
    x[1, :, 3:] /= 1e3

    def cosines(*operands):
        return sphere_conv2d(*operands, groups=groups, normalize=normalize)

    y = cosines(x, weight)
    assert_close(y.double(), cosines(x.double(), weight.double()), rtol=0.01, atol=0.01)
    x[0, 0, 0, 0] = torch.inf
    assert torch.equal(cosines(x, weight)[1], y[1])


def test_autocast_keeps_the_norm_in_float32():
    x, weight = PROBLEMS[0].operands(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert patch_norm(1000 * x, (3, 3)).dtype == torch.float32
        assert sphere_conv2d(x, weight).dtype == torch.bfloat16


LAYERS = SphereConv2d, partial(Conv2d, similarity="dynamic-diagonal")
OPERANDS = {"x": torch.zeros(1, 4, 5, 5), "weight": torch.zeros(2, 4, 3, 3)}
test_errors = refusals(
    ({"angle": "sine"}, "`angle` must be one of cosine, linear, sigmoid, got 'sine'"),
    ({"normalize": "none"}, "`normalize` must be one of both, input, got 'none'"),
    ({"normalize": "input", "angle": "linear"}, '`normalize` must be "both" for `angle`'),
    ({"k": 0.0}, "`k` must be positive, got 0.0"),
    ({"eps": 0.0}, "`eps` must be positive, got 0.0"),
    ({"groups": 3}, "`groups` must divide the 4 channels, got 3"),
    ({"groups": 0}, "`groups` must divide the 4 channels, got 0"),
    ({"bias": torch.zeros(5)}, r"`bias` must be \(2,\), got \(5,\)"),
    ({"x": torch.zeros(4, 5)}, r"numbers \(n, c, \*size\) .* of 2 sizes, got .* \(4, 5\)"),
    ({"x": torch.zeros(1, 4, 5, 5).long()}, "`x` must be floating point numbers .*int64"),
    call=lambda options: sphere_conv2d(**OPERANDS | options),
)
test_maps_smaller_than_the_window_are_refused = refusals(
    *((make, size, "[Kk]ernel|window") for make in LAYERS for size in [(5, 2), (2, 5), (1, 1)]),
    call=lambda make, size: make(4, 3, 3)(torch.randn(2, 4, *size)),
    error=(ValueError, RuntimeError),
)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("maps", MAPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_pointwise_parts_by_torch(law, maps, dtype):
    assert pointwise.implementation(torch.empty(1, 1, 1, dtype=dtype)) is pointwise_torch
    LAWS[law](maps, dtype, "cpu")


@pytest.mark.parametrize("maps", MAPS, ids=str)
def test_norms_are_wide_under_autocast(maps):
    with torch.autocast("cpu", torch.bfloat16):
        LAWS["factors"](maps, torch.float32, "cpu")


def test_second_derivatives_of_pointwise_parts(monkeypatch):
    """Of kernels, which have no derivatives of their own."""
    functions = dict(getmembers(pointwise_torch, isfunction))
    kernels = {name: torch.no_grad()(function) for name, function in functions.items()}
    monkeypatch.setattr(pointwise, "implementation", lambda *_: SimpleNamespace(**kernels))
    check_second_derivatives("cpu")


def test_a_rectifiers_gradient_is_torchs_for_numbers_that_are_none():
    y = torch.tensor([float("nan"), 1.0, 0.0, 2.0, -1.0]).view(1, 5, 1, 1).requires_grad_()
    z = torch.relu(y)
    grad = torch.tensor([1.0, 1.0, float("inf"), 1.0, float("inf")]).view(1, 5, 1, 1)
    (true,) = torch.autograd.grad(z, y, grad)
    found, _ = pointwise_torch.scaled_gradient(grad, z.detach(), torch.ones(1, 1, 1, 1), True)
    assert torch.equal(found, true)

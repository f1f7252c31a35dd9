"""Affine against torch's own turning, mirroring and sampling of the kernel."""

from math import cos, pi, sin

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns

INDEX = {"angle": 0, "scale_y": 1, "scale_x": 2, "shear": 3, "shift_y": 4, "shift_x": 5}
KERNELS = [(3, 3), (5, 5), (4, 4), (3, 5), (2, 4)]
SQUARE = [(3, 3), (4, 4), (7, 7)]


def layer(kernel_size, dtype=torch.float64, **numbers):
    layer = ns.Conv2d(3, 2, kernel_size, similarity=ns.Static(ns.Affine()), dtype=dtype)
    with torch.no_grad():
        for name, number in numbers.items():
            layer.similarity.raw[INDEX[name]] = number
    return layer


def moved(layer):
    return layer.similarity.fold(layer.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel_size", SQUARE)
@pytest.mark.parametrize("turns", [-3, -1, 0, 1, 2, 3, 6])
def test_whole_angles_are_rot90_exactly(kernel_size, turns, dtype):
    turned = layer(kernel_size, dtype, angle=turns)
    assert torch.equal(moved(turned), turned.weight.rot90(turns, (2, 3)))
    folded = ns.fold(turned)
    assert type(folded) is nn.Conv2d
    assert torch.equal(folded.weight, turned.weight.rot90(turns, (2, 3)))


@pytest.mark.parametrize("kernel_size", KERNELS)
def test_mirrored_grids_are_flips_and_shifts_are_rolls_with_zeros_exactly(kernel_size):
    plain = layer(kernel_size)
    identity = torch.eye(plain.similarity.geometry.taps).double()
    assert torch.equal(plain.similarity.matrix(), identity)
    down = layer(kernel_size, scale_y=-2)
    assert torch.equal(moved(down), down.weight.flip(2))
    both = layer(kernel_size, scale_y=-2, scale_x=-2)
    assert torch.equal(moved(both), both.weight.flip(2, 3))
    shifted = layer(kernel_size, shift_y=1, shift_x=-1)
    expected = F.pad(shifted.weight[:, :, 1:, :-1], (1, 0, 0, 1))
    assert torch.equal(moved(shifted), expected)


NUMBERS = {"angle": 0.3, "scale_y": -0.3, "scale_x": 0.2, "shear": 0.4, "shift_y": 0.3}


@pytest.mark.parametrize("kernel_size", KERNELS)
@pytest.mark.parametrize("numbers", [NUMBERS, {"angle": -0.5}, {"shear": -0.7}, {"shift_x": 0.25}])
def test_m_is_torchs_bilinear_sampling_of_the_kernel(kernel_size, numbers):
    """By grid_sample, which has (x, y) and counts from −1 to 1 between the outermost taps."""
    moving = layer(kernel_size, **numbers)
    n = dict.fromkeys(INDEX, 0.0) | numbers
    turn = n["angle"] * pi / 2
    rotation = torch.tensor([[cos(turn), sin(turn)], [-sin(turn), cos(turn)]])
    shear = torch.tensor([[1, n["shear"]], [0, 1]])
    scale = torch.diag(torch.tensor([1 + n["scale_y"], 1 + n["scale_x"]]))
    whole = (rotation @ shear @ scale).double()
    half = (torch.tensor(kernel_size).double() - 1) / 2
    grid = torch.zeros(1, *kernel_size, 2).double()
    for row in range(kernel_size[0]):
        for column in range(kernel_size[1]):
            at = whole @ (torch.tensor([row, column]) - half)
            at = at + torch.tensor([n["shift_y"], n["shift_x"]])
            grid[0, row, column] = (at / half).flip(0)
    kernels = moving.weight.flatten(0, 1)[None]
    sampled = F.grid_sample(kernels, grid, align_corners=True)
    assert_close(moved(moving), sampled.view_as(moving.weight), atol=1e-6, rtol=0)
    x = torch.randn(2, 3, 9, 8).double()
    assert_close(moving(x), F.conv2d(x, moved(moving), moving.bias))


def test_numbers_move_from_the_identity_by_the_mean_of_both_sides():
    """A gradient that a finite difference confirms, there where bilinear weights have corners."""
    still = layer((3, 3))
    score = torch.randn(still.weight.shape).double()

    def loss(raw):
        weights = torch.func.functional_call(still.similarity.structure, {}, raw[None])[0]
        return (still.weight.detach().flatten(2) @ weights).view_as(score).mul(score).sum()

    raw = still.similarity.raw.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(raw), raw)
    steps = 1e-5 * torch.eye(6).double()
    slopes = torch.stack([(loss(raw + h) - loss(raw - h)) / 2e-5 for h in steps])
    assert_close(gradient, slopes, atol=1e-4, rtol=1e-4)
    assert gradient.abs().min() > 1e-3


def test_tied_layers_have_one_parameter_whatever_their_kernels():
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 5), nn.Linear(2, 2))
    spec = ns.Static(ns.Affine("angle", tied=True))
    converted = ns.convert(network, spec)
    angle = converted[0].similarity.raw
    assert converted[1].similarity.raw is angle
    assert angle.shape == (1,)
    angle.data.fill_(1)
    folded = ns.fold(converted)
    for before, after in zip(network[:2], folded[:2], strict=True):
        assert torch.equal(after.weight, before.weight.rot90(1, (2, 3)))
    groups = ns.parameter_groups(converted, weight_decay=0.1)
    assert sum(p is angle for group in groups for p in group["params"]) == 1
    apart = ns.convert(network, ns.Static(ns.Affine("angle")))
    assert apart[1].similarity.raw is not apart[0].similarity.raw
    blocks = ns.convert(network, ns.Static(ns.Unshared(spec.structure, filters=3)))
    assert blocks[1].similarity.raw is blocks[0].similarity.raw
    assert blocks[0].similarity.raw.shape == (3,)


def test_parts_are_in_one_order_and_texts_read_back():
    affine = ns.Affine(("shift", "angle"))
    assert affine == ns.Affine(("angle", "shift"))
    text = ns.nn.format_similarity(ns.Static(ns.Affine("shear")), complete=True)
    assert ns.nn.parse_similarity(text) == ns.Static(ns.Affine(("shear",)))


test_errors = refusals(
    (lambda: ns.Affine(()), "`parts` must be some of angle, scale, shear, shift, got"),
    (lambda: ns.Affine("turn"), "`parts` must be some of"),
    (lambda: ns.Affine(tied=1), "`tied` must be True or False"),
    (lambda: ns.Dynamic(ns.Affine(tied=True)), "`structure` must not be for static M only"),
    (lambda: ns.Linear(4, 4, similarity=ns.Static(ns.Affine())), r"two dimensions, .*\(4,\)"),
)

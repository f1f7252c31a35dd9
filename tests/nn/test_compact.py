"""Folding drops what a selection or shift made zero for good, and keeps the function."""

from math import prod

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns

OURS = {1: ns.Conv1d, 2: ns.Conv2d, 3: ns.Conv3d}
PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
PADS = {1: nn.ZeroPad1d, 2: nn.ZeroPad2d, 3: nn.ZeroPad3d}


def layer_of(kernel_size, structure, **options):
    similarity = ns.Static(structure)
    make = OURS[len(kernel_size)]
    return make(4, 6, kernel_size, similarity=similarity, dtype=torch.float64, **options)


def selecting(kernel_size, taps, **options):
    """A layer whose kernel tap p sees the patch tap at the position `taps[p mod len(taps)]`."""
    layer = layer_of(kernel_size, ns.Select(), **options)
    count = prod(kernel_size)
    index = torch.arange(count).view(kernel_size)
    scores = layer.similarity.raw.data.view(count, count)
    for p in range(count):
        scores[p, index[taps[p % len(taps)]]] = 5.0
    return layer


def input_for(layer):
    return torch.randn(2, 4, *(11, 12, 10)[: len(layer.kernel_size)], dtype=torch.float64)


SYMMETRIC = [
    # kernel, selected taps, options of the layer, kernel and padding left
    ((5, 5), [(1, 1), (3, 3)], {"padding": 2}, (3, 3), (1, 1)),
    ((3, 5), [(1, 1), (1, 3)], {"padding": (1, 2), "stride": (2, 3)}, (1, 3), (0, 1)),
    ((5, 3), [(1, 1), (3, 1)], {"padding": (4, 3), "dilation": (2, 3)}, (3, 1), (2, 0)),
    ((3, 3), [(1, 0), (1, 2)], {"padding": "same", "groups": 2}, (1, 3), (0, 1)),
    ((3, 3), [(1, 0), (1, 2)], {"padding": "same", "dilation": 2}, (1, 3), (0, 2)),
    ((3, 3), [(0, 1), (2, 1)], {"padding": (0, 1), "bias": False}, (3, 1), (0, 0)),
    ((5,), [(1,), (3,)], {"padding": 2, "stride": 2}, (3,), (1,)),
    ((3, 3, 3), [(1, 0, 1), (1, 2, 1)], {"padding": 1}, (1, 3, 1), (0, 1, 0)),
]
ASYMMETRIC = [
    # kernel, selected taps, options of the layer, kernel left, padding before and after
    ((3, 3), [(0, 0), (1, 1)], {"padding": 1}, (2, 2), [(1, 0), (1, 0)]),
    ((5, 5), [(2, 2)], {"padding": 1}, (1, 1), [(-1, -1), (-1, -1)]),
    ((3, 3), [(0, 2), (1, 2)], {}, (2, 1), [(0, -1), (-2, 0)]),
    ((3, 4), [(2, 1), (2, 2)], {"padding": (2, 1), "stride": (3, 2)}, (1, 2), [(0, 2), (0, 0)]),
    ((4, 3), [(1, 0), (2, 2)], {"padding": "same"}, (2, 3), [(0, 1), (1, 1)]),
    ((4, 3), [(0, 0), (3, 1)], {"padding": "same", "dilation": (3, 2)}, (4, 2), [(4, 5), (2, 0)]),
    ((3, 5), [(0, 0), (1, 3)], {"padding": "valid", "groups": 2}, (2, 4), [(0, -1), (0, -1)]),
    ((4,), [(0,), (1,)], {"padding": 3, "dilation": 2, "bias": False}, (2,), [(3, -1)]),
    ((3, 2, 3), [(2, 0, 1)], {"padding": 1}, (1, 1, 1), [(-1, 1), (1, 0), (0, 0)]),
]


@pytest.mark.parametrize(("kernel", "taps", "options", "left", "padding"), SYMMETRIC, ids=str)
def test_dead_borders_leave_a_smaller_convolution(kernel, taps, options, left, padding):
    layer = selecting(kernel, taps, **options)
    x = input_for(layer)
    fused = layer.fuse()
    assert type(fused) is PLAIN[len(kernel)]
    assert fused.weight.shape == (6, 4 // layer.groups, *left)
    assert (fused.kernel_size, fused.padding) == (left, padding)
    assert (fused.stride, fused.dilation, fused.groups) == (
        layer.stride, layer.dilation, layer.groups,
    )  # fmt: skip
    assert (fused.bias is None) == (layer.bias is None)
    assert_close(fused(x), layer(x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("kernel", "taps", "options", "left", "sides"), ASYMMETRIC, ids=str)
def test_uneven_borders_leave_a_padding_and_a_smaller_layer(kernel, taps, options, left, sides):
    layer = selecting(kernel, taps, **options)
    x = input_for(layer)
    fused = layer.fuse()
    pad, convolution = fused
    assert type(fused) is nn.Sequential
    assert type(pad) is PADS[len(kernel)]
    assert type(convolution) is PLAIN[len(kernel)]
    assert pad.padding == tuple(amount for side in reversed(sides) for amount in side)
    assert convolution.kernel_size == left
    assert convolution.padding == (0,) * len(left)
    assert_close(fused(x), layer(x))
    assert_close(fused(x[0]), layer(x[0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: selecting((3, 3), [(0, 0), (2, 2)], padding=1),
        lambda: selecting((3, 3), [(1, 1)], padding=1, padding_mode="reflect"),
        lambda: layer_of((3, 3), ns.Select(), padding="same"),
    ],
    ids=["corners", "reflect", "identity"],
)
def test_other_layers_keep_their_size(make):
    layer = make()
    fused = layer.fuse()
    assert type(fused) is nn.Conv2d
    assert (fused.kernel_size, fused.padding) == (layer.kernel_size, layer.padding)
    x = input_for(layer)
    assert_close(fused(x), layer(x))


def test_a_selection_for_every_group_of_channels_crops_to_what_any_of_them_sees():
    layer = layer_of((3, 3), ns.Unshared(ns.Select(), channels=2), padding=1)
    layer.similarity.raw.data.view(2, 9, 9)[0, :, 4] = 5.0
    layer.similarity.raw.data.view(2, 9, 9)[1, :, 1] = 5.0
    pad, convolution = layer.fuse()
    assert convolution.kernel_size == (2, 1)
    assert pad.padding == (0, 0, 1, 0)
    x = input_for(layer)
    assert_close(layer.fuse()(x), layer(x))


def test_a_kernel_of_zeros_keeps_one_tap():
    layer = selecting((3, 3), [(1, 1)], padding=1)
    layer.weight.data.zero_()
    x = input_for(layer)
    assert_close(layer.fuse()(x), layer(x))


def test_smaller_layers_keep_mode_and_what_is_frozen():
    for layer in (selecting((3, 3), [(0, 0)], padding=1), shifting((3, 3), padding=1)):
        layer.eval().weight.requires_grad_(False)
        fused = layer.fuse()
        assert not any(module.training for module in fused.modules())
        trained = {name: p.requires_grad for name, p in fused.named_parameters()}
        assert trained.pop("1.bias")
        assert not any(trained.values())
        assert {p.dtype for p in fused.parameters()} == {torch.float64}


def test_networks_fold_with_smaller_layers_in_their_places():
    network = nn.ModuleDict({"a": selecting((3, 3), [(0, 0), (1, 1)], padding=1)})
    network["b"] = nn.Sequential(nn.ReLU(), ns.Conv2d(6, 4, 3, padding=1).double())
    network["again"] = network["a"]
    ns.convert(network, ns.Static(ns.Select()), where=["b.1"], inplace=True)
    folded = ns.fold(network)
    assert isinstance(folded["a"], nn.Sequential)
    assert folded["again"] is folded["a"]
    assert type(folded["b"][1]) is nn.Conv2d
    x = input_for(network["a"])
    for names in (["a", "b"], ["again"]):
        whole, small = (nn.Sequential(*[net[name] for name in names]) for net in (network, folded))
        assert ns.max_difference(whole, small, x) <= 1e-12


def shifting(kernel_size, structure=None, **options):
    structure = structure or ns.Unshared(ns.Shift(), channels="each")
    layer = layer_of(kernel_size, structure, **options)
    layer.similarity.raw.data.normal_()
    return layer


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((3, 3), {"padding": 1, "stride": (2, 1), "dilation": (1, 2)}),
        ((2, 3), {"padding": "same", "bias": False}),
        ((4,), {"padding": 2, "stride": 3}),
        ((2, 1, 3), {"padding": (1, 0, 2)}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "structure", [ns.Unshared(ns.Shift(), channels=c) for c in ("each", 2)] + [ns.Shift()], ids=str
)
def test_shifts_become_a_depthwise_and_a_point_convolution(kernel, options, structure):
    layer = shifting(kernel, structure, **options)
    x = input_for(layer)
    fused = ns.fold(layer)
    shift, join = fused
    assert [type(m) for m in fused] == [PLAIN[len(kernel)]] * 2
    assert (shift.groups, shift.bias, shift.kernel_size) == (4, None, kernel)
    assert shift.weight.flatten(1).count_nonzero(1).tolist() == [1] * 4
    ones = (1,) * len(kernel)
    assert (join.kernel_size, join.stride, join.groups) == (ones, ones, 1)
    assert_close(fused(x), layer(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: shifting((3, 3), groups=2),
        lambda: shifting((3, 3), padding=1, padding_mode="circular"),
        lambda: shifting((3, 3), ns.Unshared(ns.Shift(), filters="each")),
        lambda: shifting((3, 3), ns.Unshared(ns.Shift(), filters=2)),
    ],
    ids=["groups", "circular", "filters", "filter-groups"],
)
def test_shifts_that_are_no_depthwise_one_fold_into_one_convolution(make):
    layer = make()
    fused = layer.fuse()
    x = input_for(layer)
    assert type(fused) is nn.Conv2d
    assert_close(fused(x), layer(x))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_layers_with_hooks_keep_their_size_and_their_hooks(kind):
    calls = []
    layer = selecting((3, 3), [(1, 1)], padding=1)
    getattr(layer, f"register_{kind}_hook")(lambda *_: calls.append(kind))
    fused = layer.fuse()
    assert fused.kernel_size == (3, 3)
    x = input_for(layer).requires_grad_()
    y = fused(x)
    y.sum().backward()
    assert calls == [kind]
    assert_close(y, layer(x))

"""Smaller layers in place of folded kernels that are mostly zero."""

from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.modes import has_hooks
from neural_similarity.nn.predictor import CONV_LAYERS
from neural_similarity.nn.sparse import ShiftModule
from neural_similarity.nn.structure import StructureModule

_PADS = {1: nn.ZeroPad1d, 2: nn.ZeroPad2d, 3: nn.ZeroPad3d}


def compact_layer(layer: _ConvNd, geometry: Geometry, structure: StructureModule) -> nn.Module:
    """A folded layer without the taps that its M keeps at zero.

    Selections: border taps that no kernel tap selects are removed, and their padding with them; if
    the two sides then differ, a padding layer precedes the convolution. One tap for every channel:
    a depthwise convolution that shifts, then a 1×1 convolution. Other layers stay as they are, and
    so do layers with hooks, which belong to this very layer, and layers of a user's class.
    """
    if has_hooks(layer) or type(layer) not in CONV_LAYERS.values():
        return layer
    compact = layer
    if layer.padding_mode == "zeros" and _shifts_channels(structure) and layer.groups == 1:
        compact = _shift_and_join(layer, geometry)
    elif layer.padding_mode == "zeros" and structure.crops:
        compact = _crop_kernel(layer, geometry)
    return compact.train(layer.training)


def _shifts_channels(structure: StructureModule) -> bool:
    """Whether all kernels see one and the same tap of a channel."""
    is_shift = isinstance(getattr(structure, "inner", structure), ShiftModule)
    return is_shift and (structure.blocks is None or structure.blocks[0] == "channels")


@torch.no_grad()
def _crop_kernel(layer: _ConvNd, geometry: Geometry) -> nn.Module:
    used = layer.weight.flatten(0, 1).any(0)
    kernel, sides = layer.weight, []
    for dim, (before, after) in enumerate(geometry.both_sides()):
        # Output p reads tap t at input p + distance·t - before: without the first taps the same
        # inputs need so much less padding before, without the last ones so much less behind.
        first, last = _used_span(used.movedim(dim, 0).reshape(geometry.kernel_size[dim], -1).any(1))
        kernel = kernel.narrow(2 + dim, first, last - first + 1)
        beyond = geometry.kernel_size[dim] - 1 - last
        distance = geometry.dilation[dim]
        sides.append((before - distance * first, after - distance * beyond))
    if kernel.shape == layer.weight.shape:
        return layer
    if all(before == after >= 0 for before, after in sides):
        return _layer_like(layer, kernel, layer.bias, padding=tuple(before for before, _ in sides))
    padding = _PADS[len(sides)](tuple(chain(*reversed(sides))))
    return nn.Sequential(padding, _layer_like(layer, kernel, layer.bias, padding=0))


def _used_span(used: Tensor) -> tuple[int, int]:
    """First and last of the taps in use along a dimension; the first tap if all are zero."""
    taps = used.nonzero().flatten().tolist() or [0]
    return taps[0], taps[-1]


@torch.no_grad()
def _shift_and_join(layer: _ConvNd, geometry: Geometry) -> nn.Sequential:
    """A kernel with one tap of every channel in use, as a depthwise shift and a 1×1 convolution."""
    taps = layer.weight.flatten(2)  # (o, c, K), zero but in one column of each channel
    tap = taps.abs().sum(0).argmax(1)
    channels = torch.arange(len(tap), device=tap.device)
    shift = torch.zeros_like(taps[0])
    shift[channels, tap] = 1
    depthwise = _layer_like(layer, shift.view(-1, 1, *geometry.kernel_size), None, groups=len(tap))
    # y_o(p) = Σ_c W[o,c,tap(c)] x_c(p + tap(c)): first x_c shifted by its tap, then a 1×1 kernel.
    joint = taps[:, channels, tap].view(*taps.shape[:2], *[1] * (layer.weight.dim() - 2))
    return nn.Sequential(
        depthwise, _layer_like(layer, joint, layer.bias, stride=1, padding=0, dilation=1)
    )


def _layer_like(layer: _ConvNd, kernel: Tensor, bias: Tensor | None, **changes: Any) -> _ConvNd:
    """A convolution with this kernel and the options of `layer`, except for `changes`."""
    names = ("stride", "padding", "dilation", "groups")
    options = {name: getattr(layer, name) for name in names} | changes
    out_channels, per_group, *size = kernel.shape
    convolution = cast(Any, type(layer))(
        per_group * options["groups"], out_channels, tuple(size),
        bias=bias is not None, device=kernel.device, dtype=kernel.dtype, **options,
    )  # fmt: skip
    trained = layer.weight.requires_grad
    convolution.weight = nn.Parameter(kernel.clone(), trained)
    if bias is not None:
        convolution.bias = nn.Parameter(bias.clone(), bias.requires_grad)
    return convolution

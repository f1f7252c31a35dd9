"""What the subjects must compute: the defining einsum, or torch's convolution image by image."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.case import KERNEL, PADDING, TAPS
from benchmarks.formulations import ODConv2d
from neural_similarity.nn import Conv2d, DynamicSimilarity, StaticSimilarity
from neural_similarity.ops import reference

KINDS = (StaticSimilarity, DynamicSimilarity)
CHUNK = 1 << 15
"""Positions that the definition takes at a time: what it keeps of each is a hundred times x."""


def bilinear(module: nn.Module, x: Tensor, m: Tensor) -> Tensor:
    """The operator with M at every position, as a predictor puts it out (n, 9 or 81, h, w)."""
    taps = (TAPS,) if m.shape[1] == TAPS else (TAPS, TAPS)
    return _reference(x, cast(Tensor, module.weight), m.unflatten(1, taps))


def static(module: nn.Module, x: Tensor) -> Tensor:
    """The operator with one M (9,) or (9, 9) at every position."""
    return _reference(x, cast(Tensor, module.weight), _everywhere(cast(Tensor, module.m), x))


def plain(module: nn.Module, x: Tensor) -> Tensor:
    """The operator with M = I."""
    return _reference(x, cast(Tensor, module.weight), _everywhere(x.new_ones(TAPS), x))


def condconv(module: nn.Module, x: Tensor, routing: Tensor) -> Tensor:
    """CondConv: every image's kernel is the sum of the experts' by its routing weights (n, e)."""
    kernels = torch.einsum("ne,ek->nk", routing, cast(Tensor, module.weight))
    return _per_image(x, kernels.view(len(x), -1, x.shape[1], KERNEL, KERNEL))


def odconv(module: nn.Module, x: Tensor) -> Tensor:
    """ODConv by its paper's formula: all four attentions on the kernels."""
    channels, filters, taps, kernels = cast(ODConv2d, module).attentions(x)
    weight = cast(Tensor, module.weight).flatten(3)
    equation = "ni,nf,nc,nt,ifct->nfct"
    mixed = torch.einsum(equation, kernels, filters, channels, taps, weight)
    return _per_image(x, mixed.unflatten(-1, (KERNEL, KERNEL)))


def network(module: nn.Module, x: Tensor) -> Tensor:
    """A network, or a layer, with its similarities applied by the defining einsum from now on."""
    for layer in list(module.modules()):
        if isinstance(layer, Conv2d) and isinstance(layer.similarity, KINDS):
            layer.similarity = _Defined(layer.similarity)
    return module(x)


class _Defined(nn.Module):
    """A similarity that a layer applies by its definition."""

    def __init__(self, similarity: nn.Module):
        super().__init__()
        self.similarity = similarity

    def forward(self, layer: Conv2d, x: Tensor) -> Tensor:
        if isinstance(self.similarity, StaticSimilarity):
            return _reference(x, layer.weight, _everywhere(self.similarity.matrix(), x))
        m = cast(DynamicSimilarity, self.similarity).matrix(x)
        return _reference(x, layer.weight, m)


def _per_image(x: Tensor, kernels: Tensor) -> Tensor:
    """Every image (n, c, h, w) convolved with its own of the kernels (n, o, c, k, k)."""
    pairs = zip(x, kernels, strict=True)
    return torch.stack([F.conv2d(image, kernel, padding=PADDING) for image, kernel in pairs])


def _everywhere(m: Tensor, x: Tensor) -> Tensor:
    return m[(None, ..., None, None)].expand(len(x), *m.shape, *x.shape[2:])


def _reference(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """The definition, some images at a time, which the backward pass computes again."""
    images = max(1, CHUNK // x[0, 0].numel())
    parts = zip(x.split(images), m.split(images), strict=True)
    return torch.cat([_definition(x, weight, m) for x, m in parts])


def _definition(x: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    geometry = (1, 1), (PADDING, PADDING), (1, 1), 1
    function = reference.similarity_conv
    return checkpoint(function, x, weight, m.unsqueeze(1), *geometry, use_reentrant=False)

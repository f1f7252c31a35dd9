"""What a module must compute, by the definition in float64, and how far from it it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import inf, isnan
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.case import Subject
from neural_similarity.nn import Conv2d, DynamicSimilarity, StaticSimilarity
from neural_similarity.ops import reference

KINDS = (StaticSimilarity, DynamicSimilarity)
CHUNK = 1 << 15
"""Positions that the definition takes at a time: what it keeps of each is a hundred times x."""
ROUNDING = 1e-6
"""Gradients whose norm is below this share of the largest one's count as that much: a bias before a
convolution and batch normalisation has no other gradient."""
Errors = Mapping[torch.dtype, float]


def operator(module: nn.Module, x: Tensor, m: Tensor) -> Tensor:
    """The operator with one M, (K,) or (K, K), or a predictor's output, (n, K or K², h, w)."""
    weight = cast(Tensor, module.weight)
    _, each, height, width = weight.shape
    taps = height * width
    if m.dim() == 4:
        m = m.unflatten(1, (taps,) if m.shape[1] == taps else (taps, taps))
    padding = (height // 2, width // 2)
    return _operator_in_parts(x, weight, m, (1, 1), padding, (1, 1), x.shape[1] // each)


def network(module: nn.Module, x: Tensor) -> Tensor:
    """A network, or a layer, with its similarities applied by the definition from now on."""
    for layer in module.modules():
        if isinstance(layer, Conv2d) and isinstance(layer.similarity, KINDS):
            layer.forward = partial(_by_definition, layer)
    return module(x)


def _by_definition(layer: Conv2d, input: Tensor) -> Tensor:
    similarity: Any = layer.similarity
    static = isinstance(similarity, StaticSimilarity)
    m = similarity.matrix() if static else similarity.matrix(input)
    geometry = layer.stride, layer.padding, layer.dilation, layer.groups
    y = _operator_in_parts(input, layer.weight, m, *geometry)
    return y if layer.bias is None else y + layer.bias[:, None, None]


def _operator_in_parts(x: Tensor, weight: Tensor, m: Tensor, *geometry: Any) -> Tensor:
    """The definition, some images at a time, which the backward pass computes again.

    The geometry is stride, padding, dilation and groups.
    """
    if m.dim() < 3:
        sides = zip(x.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
        size = [(s + 2 * p - d * (k - 1) - 1) // step + 1 for s, k, step, p, d in sides]
        m = m[(None, ..., None, None)].expand(len(x), *m.shape, *size)
    images = max(1, CHUNK // x[0, 0].numel())
    parts = zip(x.split(images), m.flatten(-2).unsqueeze(1).split(images), strict=True)
    define = partial(checkpoint, reference.similarity_conv, use_reentrant=False)
    return torch.cat([define(x, weight, m, *geometry) for x, m in parts])


class Checker:
    """Compares subjects with their oracles in float64, gradients included.

    Args:
        grad: Gradient of every subject's output.
        dtype: In which the subjects compute.
    """

    def __init__(self, grad: Tensor, dtype: torch.dtype):
        self.grad, self.dtype = grad, dtype
        self.known: dict[tuple, list[Tensor]] = {}

    def errors(self, subject: Subject) -> Errors:
        """The largest error of the output or of a gradient, by the dtype that it was computed in.

        Gradients that rounding may change at will are compared in float64.
        """
        if subject.smooth:
            return {self.dtype: _largest(self._outcome(subject), self._expected(subject))}
        gradients = _largest(self._outcome(_in_float64(subject)), self._by_oracle(subject))
        return {self.dtype: _output_error(subject), torch.float64: gradients}

    def _outcome(self, subject: Subject) -> list[Tensor]:
        module = subject.module
        return outcome(module, subject.inputs, trained(module), self.grad)

    def _expected(self, subject: Subject) -> list[Tensor]:
        """What formulations of the same operator, kernel and inputs must compute, computed once."""
        operands = *subject.inputs, *subject.module.parameters()
        key = subject.oracle, *map(id, operands)
        if key not in self.known:
            self.known[key] = self._by_oracle(subject)
        return self.known[key]

    def _by_oracle(self, subject: Subject) -> list[Tensor]:
        twin = _in_float64(subject)
        function = partial(twin.oracle, twin.module)
        return outcome(function, twin.inputs, trained(twin.module), self.grad)


def error_of(found: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """Norm of the difference over the norm of what is expected, float64; NaN counts as infinite.

    A norm below `least` is rounding, and counts as that much.
    """
    difference = (found.double() - expected).norm().item()
    length = max(least, expected.norm().item())
    value = difference / length if length else difference
    return inf if isnan(value) else value


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module whose gradients count."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def outcome(
    function: Callable[..., Tensor],
    inputs: Iterable[Tensor],
    parameters: Iterable[Tensor],
    grad: Tensor,
) -> list[Tensor]:
    """The output, then the gradients of the inputs that require one and of the parameters."""
    y = function(*inputs)
    wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
    gradients = torch.autograd.grad(y, wanted, grad.to(y.dtype)) if wanted else ()
    return [y.detach(), *gradients]


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    least = ROUNDING * max((gradient.norm().item() for gradient in expected[1:]), default=0.0)
    floors = [0.0, *[least] * len(expected[1:])]
    return max(error_of(*three) for three in zip(found, expected, floors, strict=True))


def _output_error(subject: Subject) -> float:
    """Error of the output alone, in the subject's own precision and in evaluation mode."""
    subject = replace(subject, module=deepcopy(subject.module).eval())
    twin = _in_float64(subject)
    with torch.no_grad():
        return error_of(subject.module(*subject.inputs), twin.oracle(twin.module, *twin.inputs))


def _in_float64(subject: Subject) -> Subject:
    inputs = (t.detach().double().requires_grad_(t.requires_grad) for t in subject.inputs)
    return replace(subject, module=deepcopy(subject.module).double(), inputs=tuple(inputs))

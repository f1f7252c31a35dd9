"""Convolutions of other classes than torch's, which compute their kernel or padding in `forward`.

`forward` runs as it is, and M acts on the kernel of the convolution that it calls: after the
standardisation of timm's StdConv2d, behind the padding of its Conv2dSame.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from neural_similarity.nn.geometry import Geometry, convolution_geometry, repeat_per_dim
from neural_similarity.nn.layer import (
    SimilarityLayer,
    adds_nothing,
    counterpart,
    counterpart_of,
    fx_leaf,
)
from neural_similarity.nn.modes import evaluation_mode, preserving_state
from neural_similarity.nn.similarity import DynamicSimilarity

_FUNCTIONS = F.conv1d, F.conv2d, F.conv3d


class UnusualForward(ValueError):
    """Why M has no place in a class's `forward`; the text follows the class's name."""


@dataclass(frozen=True)
class ConvCall:
    """A call of torch's convolution: what a similarity needs of a layer."""

    function: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None
    geometry: Geometry

    def static_forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """The same call with `kernel`."""
        frame = self.geometry
        window = frame.stride, frame.padding, frame.dilation
        return self.function(x, kernel, self.bias, *window, frame.groups)

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The call with a predicted M."""
        if self.geometry != similarity.geometry:
            built = similarity.geometry
            raise ValueError(f"the layer's convolution must stay {built}, got {self.geometry}")
        return similarity.convolve_maps(x, self.weight, self.bias)


class _Intercepted(TorchFunctionMode):
    """Gives the convolutions that are called inside it to a function of (call, input)."""

    def __init__(self, answer: Callable[[ConvCall, Tensor], Tensor]):
        super().__init__()
        self._answer = answer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func not in _FUNCTIONS:
            return func(*args, **(kwargs or {}))
        return self._answer(*_call_and_input(func, *args, **(kwargs or {})))


def _call_and_input(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[ConvCall, Tensor]:
    outer, inner, *taps = weight.shape
    amount = padding if isinstance(padding, str) else repeat_per_dim(padding, len(taps))
    window = repeat_per_dim(stride, len(taps)), amount, repeat_per_dim(dilation, len(taps))
    frame = Geometry(inner * groups, outer, tuple(taps), *window, groups)
    return ConvCall(function, weight, bias, frame), input


class OwnForward(SimilarityLayer):
    """Base of the classes that `extended_class` makes, before the class that is extended."""

    def geometry(self) -> Geometry:
        """The sizes of the convolution that the layer calls."""
        return sample_calls(self)[0].call.geometry

    @fx_leaf
    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The class's own `forward`, with M in its convolution."""
        if self.similarity is None:
            return _own_class(self).forward(self, input, *args, **kwargs)
        return _run(self, self.similarity, input, *args, **kwargs)

    def static_forward(self, x: Tensor, kernel: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The class's own `forward` with `kernel` in its convolution."""
        return _run(self, lambda call, x: call.static_forward(x, kernel), x, *args, **kwargs)

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The class's own `forward` with a predicted M."""
        return _run(self, similarity, x)

    def settle_kernel(self) -> None:
        """Become a plain convolution where `forward` computes the kernel, or writes it.

        Raises:
            ValueError: `forward` pads in a way that is none of torch's or of timm's Conv2dSame, or
                its second call gives another output than a plain convolution.
        """
        super().settle_kernel()
        if not computes_kernel(self):
            return
        layer, (first, second) = cast(Any, self), sample_calls(self, 2)
        kind, call = _plain_kind(layer, first), first.call
        if not _are_close(call.static_forward(first.given, call.weight), second.output):
            raise ValueError(
                f"a {type(layer).__name__}, which computes its kernel, must compute the same one "
                "at every call and return the convolution's output to be folded"
            )
        frame, trains = call.geometry, any(p.requires_grad for p in self.parameters(False))
        for name in [*self._parameters, *self._buffers]:
            delattr(layer, name)
        layer.weight = nn.Parameter(call.weight, trains)
        layer.bias = None if call.bias is None else nn.Parameter(call.bias, trains)
        layer.stride, layer.padding, layer.dilation = frame.stride, frame.padding, frame.dilation
        layer.groups, layer.padding_mode = frame.groups, "zeros"
        self.__class__ = cast(Any, counterpart(kind))


def _are_close(output: Tensor, other: Tensor) -> bool:
    """Whether two outputs differ by no more than rounding."""
    limit = 64 * torch.finfo(output.dtype).eps * output.abs().max().item()
    return output.shape == other.shape and torch.allclose(output, other, 0, limit, equal_nan=True)


def _plain_kind(layer: Any, sample: "SampleCall") -> type[nn.Module]:
    """The class of a convolution with the same padding and a kernel of its own."""
    if not sample.padded:
        return {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[sample.call.weight.dim() - 2]
    if getattr(layer, "same_pad", False) and "timm.layers" in sys.modules:
        return sys.modules["timm.layers"].Conv2dSame
    raise ValueError(
        f"a {type(layer).__name__}, which computes its kernel, must leave padding to torch's "
        "convolution to be folded"
    )


@cache
def extended_class(ours: type[SimilarityLayer], subclass: type[nn.Module]) -> type[SimilarityLayer]:
    """Our class for a subclass of torch's convolution, which it becomes again without M."""
    bases = (ours, subclass) if adds_nothing(subclass, ours.plain) else (OwnForward, ours, subclass)
    return type(subclass.__name__, bases, {"plain": subclass, "__reduce_ex__": _reduce_layer})


def _reduce_layer(layer: nn.Module, protocol: Any) -> Any:
    """For copies and pickles: no module holds the class, so that it is made again."""
    del protocol
    return _empty_layer, (_own_class(layer),), vars(layer)


def _empty_layer(subclass: type[nn.Module]) -> nn.Module:
    ours = cast(type[nn.Module], counterpart(subclass))
    return ours.__new__(ours)


def _own_class(layer: nn.Module) -> Any:
    """The class whose `forward` a layer runs, converted or not."""
    return getattr(type(layer), "plain", type(layer))


def _run(layer: nn.Module, answer: Any, *args: Any, **kwargs: Any) -> Tensor:
    with _Intercepted(answer):
        return _own_class(layer).forward(layer, *args, **kwargs)


class SampleCall(NamedTuple):
    """A call of a layer with a random input."""

    call: ConvCall
    """Of the convolution, with copies of kernel and bias."""
    given: Tensor
    """The convolution's input."""
    padded: bool
    """Whether that is another than the layer's."""
    stored: bool
    """Whether the kernel is the layer's `weight`."""
    output: Tensor
    """Of the layer."""


@torch.no_grad()
def sample_calls(layer: nn.Module, count: int = 1) -> list[SampleCall]:
    """Calls of a layer, one after another, in evaluation mode; the layer itself is not touched.

    Raises:
        UnusualForward: `forward` takes more than an image, or calls not exactly one convolution.
    """
    if set(layer._modules) - {"parametrizations", "similarity"}:
        raise UnusualForward("with parts of its own")
    twin = _twin_of(layer)
    with evaluation_mode(twin):
        return [_record_call(twin) for _ in range(count)]


def _record_call(layer: nn.Module, count: int = 1) -> SampleCall:
    """Run a layer with `count` random images."""
    calls: list[tuple[ConvCall, Tensor, bool]] = []

    def record(call: ConvCall, given: Tensor) -> Tensor:
        stored = call.weight is layer._parameters.get("weight")
        bias = None if call.bias is None else call.bias.detach().clone()
        calls.append((replace(call, weight=call.weight.detach().clone(), bias=bias), given, stored))
        return call.static_forward(given, call.weight)

    frame = convolution_geometry(cast(_ConvNd, layer))
    x = _random_like(next(layer.parameters()), (count, frame.in_channels, *frame.sample_size()))
    try:
        with x.device:  # `torch.device("meta")` may be on, in which similarities are built.
            output = _run(layer, record, x)
    except Exception as error:
        raise UnusualForward(f"whose `forward` fails on one image alone: {error}") from error
    if len(calls) != 1:
        raise UnusualForward(f"whose `forward` calls {len(calls)} convolutions of torch's, not one")
    ((call, given, stored),) = calls
    return SampleCall(call, given, given is not x, stored, output)


def _random_like(like: Tensor, shape: Sequence[int]) -> Tensor:
    """The same numbers every time, of both signs and of magnitudes from 1e-5 to 1e3."""
    random, few, count = torch.Generator().manual_seed(0), 1021, prod(shape)
    exponents, signs = torch.rand(2, few, generator=random, device="cpu")
    numbers = 10 ** (exponents * 8 - 5) * (signs - 0.5).sign()
    return numbers.repeat(count // few + 1)[:count].view(*shape).to(like)


def _twin_of(layer: nn.Module) -> nn.Module:
    """A layer of the same class with copies of the tensors, and without similarity."""
    twin = type(layer).__new__(type(layer))
    vars(twin).update({name: _copy_value(value) for name, value in vars(layer).items()})
    inner = layer._modules.get("parametrizations")
    twin._modules = {} if inner is None else {"parametrizations": deepcopy(inner)}
    return twin


def _copy_value(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return nn.Parameter(value.detach().clone(), value.requires_grad)
    if isinstance(value, Tensor):
        return value.detach().clone()
    return {k: _copy_value(v) for k, v in value.items()} if isinstance(value, dict) else value


def _has_own_forward(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and issubclass(counterpart_of(layer), OwnForward)


def computes_kernel(layer: nn.Module) -> bool:
    """Whether a layer's kernel is made or written at every call, so that none can be merged."""
    if _has_own_forward(layer):
        return not sample_calls(layer)[0].stored or _writes_weight(layer)
    return is_parametrized(layer, "weight") or "weight" in vars(layer)  # a hook's


def _writes_weight(layer: nn.Module) -> bool:
    """Whether `forward` writes the layer's `weight`, ever: in a mode, for one image or more."""
    weight = layer._parameters.get("weight")
    if weight is None or weight.is_meta:
        return False
    return any(_writes(layer, training, count) for training in (False, True) for count in (1, 2))


def _writes(layer: nn.Module, training: bool, count: int) -> bool:
    """Whether a call writes another weight than the layer's; it has gradients in training."""
    twin = _twin_of(layer).train(training)
    weight = cast(nn.Parameter, twin._parameters["weight"])
    other = _random_like(weight, weight.shape)
    weight.data = other.clone()
    # A layer may refuse single images in training.
    with preserving_state(twin), torch.set_grad_enabled(training), suppress(UnusualForward):
        _record_call(twin, count)
    return twin._parameters.get("weight") is not weight or not torch.equal(weight, other)


@torch.no_grad()
def settle_weights(model: nn.Module) -> None:
    """Let the layers of a network that write their `weight` in `forward` do so.

    After a few calls the next one leaves it, as far as it ever does: projections round.
    """
    for layer in model.modules():
        if _has_own_forward(layer) and _writes_weight(layer):
            with evaluation_mode(layer):
                for _ in range(3):
                    _record_call(layer)

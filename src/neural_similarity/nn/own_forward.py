"""Convolutions of other classes than torch's, which compute their kernel or padding in `forward`.

`forward` runs as it is, and M acts on the kernel of the convolution that it calls: after the
standardisation of timm's StdConv2d, behind the padding of its Conv2dSame.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from neural_similarity.nn.geometry import Geometry, convolution_geometry, repeat_per_dim
from neural_similarity.nn.layer import (
    SimilarityLayer,
    adds_nothing,
    counterpart,
    counterpart_of,
    fx_leaf,
)
from neural_similarity.nn.linear import check_type
from neural_similarity.nn.modes import evaluation_mode
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
        return predicted_convolution(x, self.weight, self.bias, similarity)


def predicted_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, similarity: DynamicSimilarity
) -> Tensor:
    """The convolution of x, batched or not, with an M predicted from it.

    Raises:
        ValueError: x has another shape, type or device than `weight` asks for.
    """
    dims, channels = weight.dim() - 2, similarity.geometry.in_channels
    if x.dim() not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
        raise ValueError(
            f"`input` must be (n, {channels}, *size) or ({channels}, *size) of {dims} sizes, "
            f"got {tuple(x.shape)}"
        )
    check_type(x, weight)
    if x.dim() == dims + 1:
        return similarity.convolve(x[None], weight, bias)[0]
    return similarity.convolve(x, weight, bias)


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
        return sample_call(self)[0].geometry

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
        """Become a plain convolution where `forward` computes the kernel.

        Raises:
            ValueError: `forward` pads in a way that is none of torch's or of timm's Conv2dSame.
        """
        super().settle_kernel()
        call, padded = sample_call(self)
        layer = cast(Any, self)
        if call.weight is layer.weight:
            return
        kind, frame = _plain_kind(layer, call, padded), call.geometry
        for name in {*self._parameters} - {"bias"}:
            delattr(self, name)
        layer.weight = nn.Parameter(call.weight.detach())
        layer.stride, layer.padding, layer.dilation = frame.stride, frame.padding, frame.dilation
        layer.groups, layer.padding_mode = frame.groups, "zeros"
        self.__class__ = cast(Any, counterpart(kind))


def _plain_kind(layer: Any, call: ConvCall, padded: bool) -> type[nn.Module]:
    """The class of a convolution with the same padding and a kernel of its own."""
    if not padded:
        return {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[call.weight.dim() - 2]
    if getattr(layer, "same_pad", False) and "timm.layers" in sys.modules:
        return sys.modules["timm.layers"].Conv2dSame
    raise ValueError(
        f"a {type(layer).__name__}, which computes its kernel, must leave padding to torch's "
        "convolution to be folded"
    )


@cache
def extended_class(ours: type[SimilarityLayer], kind: type[nn.Module]) -> type[SimilarityLayer]:
    """Our class for a subclass of torch's convolution, which it becomes again without M."""
    bases = (ours, kind) if adds_nothing(kind, ours.plain) else (OwnForward, ours, kind)
    return type(kind.__name__, bases, {"plain": kind, "__reduce_ex__": _reduced})


def _reduced(layer: nn.Module, protocol: Any) -> Any:
    """For copies and pickles: no module holds the class, so that it is made again."""
    del protocol
    return _empty_layer, (_own_class(layer),), vars(layer)


def _empty_layer(kind: type[nn.Module]) -> nn.Module:
    ours = cast(type[nn.Module], counterpart(kind))
    return ours.__new__(ours)


def _own_class(layer: nn.Module) -> Any:
    """The class whose `forward` a layer runs, converted or not."""
    return getattr(type(layer), "plain", type(layer))


def _run(layer: nn.Module, answer: Any, *args: Any, **kwargs: Any) -> Tensor:
    with _Intercepted(answer):
        return _own_class(layer).forward(layer, *args, **kwargs)


def sample_call(layer: nn.Module) -> tuple[ConvCall, bool]:
    """The convolution that a layer calls for an input of zeros, and whether it pads that before.

    Raises:
        UnusualForward: `forward` takes more than an image, or calls not exactly one convolution.
    """
    if set(layer._modules) - {"parametrizations", "similarity"}:
        raise UnusualForward("with parts of its own")
    calls: list[tuple[ConvCall, Tensor]] = []

    def record(call: ConvCall, x: Tensor) -> Tensor:
        calls.append((call, x))
        return call.static_forward(x, call.weight)

    frame = convolution_geometry(cast(_ConvNd, layer))
    x = next(layer.parameters()).new_zeros(1, frame.in_channels, *frame.sample_size())
    try:
        with evaluation_mode(layer), torch.no_grad():
            _run(layer, record, x)
    except Exception as error:
        raise UnusualForward(f"whose `forward` fails on one image alone: {error}") from error
    if len(calls) != 1:
        raise UnusualForward(f"whose `forward` calls {len(calls)} convolutions of torch's, not one")
    ((call, given),) = calls
    return call, given is not x


def computes_kernel(layer: nn.Module) -> bool:
    """Whether a layer's kernel is made at every call, so that no M can be merged into it."""
    stored = layer._parameters.get("weight")
    own = isinstance(layer, _ConvNd) and issubclass(counterpart_of(layer), OwnForward)
    return (sample_call(layer)[0].weight if own else getattr(layer, "weight", None)) is not stored

"""Batch normalisation with explicit statistics, whatever mode the network is in.

In torch's layers the training flag decides: a network adapted to a task is normalised by statistics
of other weights (in evaluation mode), or lets queries see each other (in training mode).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.lab.tasks.few_shot.interface import Method, NormStatistics
from neural_similarity.ops import promote_dtype

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)

_SUPPORT: ContextVar[int | None] = ContextVar("_SUPPORT", default=None)
_TWICE: ContextVar[bool] = ContextVar("_TWICE", default=False)


@contextmanager
def support_first(count: int, *, twice: bool = False) -> Iterator[None]:
    """Inside, the first `count` inputs of every batch are the support set, the others queries.

    `twice`: the outputs will be differentiated twice.
    """
    token, again = _SUPPORT.set(count), _TWICE.set(twice)
    try:
        yield
    finally:
        _SUPPORT.reset(token)
        _TWICE.reset(again)


class _Explicit(_BatchNorm):
    """Normalises by the given statistics, and never changes its running ones."""

    statistics: NormStatistics = "running"

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if self.statistics == "running":
            return self._by_running(input)
        rows = len(input)
        count = rows if self.statistics == "transductive" else _support_count(rows)
        return self._by_first(input, count)

    def _by_running(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=self.eps)

    def _by_first(self, x: Tensor, count: int) -> Tensor:
        """Normalise by the statistics of the first `count` inputs, through which gradients flow."""
        # In channels-last torch's fused kernel (2.15) is off by 2e-5 for 25 maps of 84 pixels,
        # which MAML amplifies to percents of the gradient.
        if count == len(x) and not _TWICE.get():
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return _normalise_batch(x, count, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, statistics={self.statistics!r}"


class BatchNorm1d(_Explicit, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` with explicit statistics, see `BatchNorm2d`."""


class BatchNorm2d(_Explicit, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with explicit statistics; the same state_dict.

    `statistics` is "running" (constants kept from training), "support" (the support set's, for
    itself and for its task's queries, see `support_first`) or "transductive" (the batch's own, so
    that queries see each other). Training and evaluation mode compute the same, and running
    statistics never change. `set_statistics` turns torch's layers into these.

    Cost: torch's fused kernel, but two passes in primitive operations for queries batched with
    their support set and for what is differentiated twice.

    Shape:
        (n, c, height, width) to the same.
    """


_EXPLICIT: dict[type[_BatchNorm], type[_Explicit]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
}
_PLAIN: dict[type[_BatchNorm], type[_BatchNorm]] = {
    explicit: plain for plain, explicit in _EXPLICIT.items()
}


def set_statistics(model: AnyNetwork, statistics: NormStatistics | None) -> AnyNetwork:
    """Let every batch normalisation of `model` use these statistics, in place.

    They are "running", "support" or "transductive", see `BatchNorm2d`; None makes the layers
    torch's again, whose statistics depend on the training mode: at test, "running". A method's own
    `statistics` are set as well.

    Raises:
        ValueError: `statistics` is unknown, or a layer does not track running statistics, or has no
            explicit counterpart.
    """
    if statistics is not None and statistics not in get_args(NormStatistics):
        raise ValueError(
            f"`statistics` must be one of {', '.join(get_args(NormStatistics))} or None, "
            f"got {statistics!r}"
        )
    layers = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    for name, layer in layers.items():
        _check_layer(name, layer, statistics)
    for layer in layers.values():
        _set_statistics(layer, statistics)
    for method in model.modules():
        if isinstance(method, Method):
            method.statistics = statistics or "running"
    return model


def _check_layer(name: str, layer: _BatchNorm, statistics: NormStatistics | None) -> None:
    """Check that a layer can use the statistics."""
    if type(layer) not in {*_EXPLICIT, *_EXPLICIT.values()}:
        raise ValueError(
            "`model` must have 1-d and 2-d batch normalisation only, got a "
            f"{type(layer).__name__}, layer {name!r}"
        )
    if statistics == "running" and layer.running_mean is None:
        raise ValueError(
            f'`statistics` "running" needs layers that track them, got {name!r} with '
            "track_running_stats=False"
        )


def _set_statistics(layer: _BatchNorm, statistics: NormStatistics | None) -> None:
    if statistics is None:
        layer.__class__ = _PLAIN.get(type(layer), type(layer))
        layer.__dict__.pop("statistics", None)
        return
    layer.__class__ = _EXPLICIT.get(type(layer), type(layer))
    cast(_Explicit, layer).statistics = statistics


def _support_count(rows: int) -> int:
    count = _SUPPORT.get()
    if count is None or not 0 < count <= rows:
        raise ValueError(
            '`statistics` "support" needs the number of support images, the first of the inputs, '
            f"by `support_first(count)` with 1 to {rows}, got {count}"
        )
    return count


def _normalise_batch(
    x: Tensor, count: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Batch normalisation in primitive operations, in float32 at least."""
    wide = promote_dtype(x)
    dims = [d for d in range(x.dim()) if d != 1]
    var, mean = torch.var_mean(wide[:count], dims, correction=0, keepdim=True)
    scale, shape = torch.rsqrt(var + eps), mean.shape
    if weight is not None:
        scale = scale * weight.view(shape)
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias.view(shape)
    return (wide * scale + shift).to(x.dtype)

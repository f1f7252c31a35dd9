"""One predictor for all layers of a kernel size, behind an adaptation of each layer's own."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from torch import nn

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import CONV_LAYERS, PatchConv, SphereNet
from neural_similarity.nn.spec import Spec

_POOL: ContextVar[dict[Hashable, nn.Module] | None] = ContextVar("_POOL", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Layers built inside share their `Shared` predictors; nested contexts are one.

    `ns.convert` and the networks of `ns.models` build inside one of their own.
    """
    if _POOL.get() is not None:
        yield
        return
    token = _POOL.set({})
    try:
        yield
    finally:
        _POOL.reset(token)


@dataclass(frozen=True, kw_only=True, repr=False)
class Shared(Spec):
    """Predictor whose last two convolutions are shared by all layers of one kernel size, §3.3.2.

    A patch-normalised convolution C to `channels` with the layer's own window and ReLU, the
    adaptation, brings every layer's input to one width; then 3×3 `channels` to `hidden`, ReLU and
    3×3 `hidden` to the scalars are one module, registered in every layer that was built in the
    same `ns.sharing()` (torch's tied weights). On CNN-9 it has half of the parameters of one
    predictor a layer. A layer built outside has them to itself.

    Attributes:
        channels: Of the adaptation's output.
        hidden: Between the shared convolutions.
        share_adaptation: Share the adaptation as well, between layers of the same input channels,
            window and stride, as are those of one stage of a network.
    """

    channels: int = 32
    hidden: int = 64
    share_adaptation: bool = False

    def __post_init__(self):
        for name in ("channels", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        """The predictor module for a layer of this geometry."""
        own = replace(geometry, out_channels=1, groups=1) if self.share_adaptation else object()
        adaptation = _pooled((self, own), lambda: self._adaptation(geometry))
        key = (self, geometry.kernel_size, geometry.spatial, scalars)
        return nn.Sequential(adaptation, _pooled(key, lambda: self._head(geometry, scalars)))

    def _adaptation(self, geometry: Geometry) -> nn.Module:
        patch = PatchConv(SphereNet(), geometry, self.channels, rectify=True)
        nn.init.normal_(patch.weight, std=2**0.5)  # as in `SphereNet`, for patches of unit norm
        return nn.Sequential(patch)

    def _head(self, geometry: Geometry, scalars: int) -> nn.Module:
        size = 3 if geometry.spatial else 1
        conv = CONV_LAYERS[len(geometry.kernel_size)]
        first = conv(self.channels, self.hidden, size, padding=size // 2)
        second = conv(self.hidden, scalars, size, padding=size // 2)
        for layer in (first, second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        return nn.Sequential(first, nn.ReLU(), second)


def _pooled(key: Hashable, make: Callable[[], nn.Module]) -> nn.Module:
    """The module of this key in the current `sharing`, made where it is missing."""
    pool = _POOL.get()
    if pool is None:
        return make()
    if key not in pool:
        pool[key] = make()
    return pool[key]

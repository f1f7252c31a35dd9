"""One predictor shared by all layers of a kernel size, after an adaptation of each layer's own."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import require_count, require_flag, require_positive
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import (
    CONV_LAYERS,
    PatchConv,
    SphereNet,
    hidden_norm,
    reset_kernel,
)
from neural_similarity.nn.spec import Spec

SharedPart = TypeVar("SharedPart", bound=nn.Module | nn.Parameter)

_POOL: ContextVar[dict[Hashable, Any] | None] = ContextVar("_POOL", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Layers built inside share their `Shared` predictors; nested contexts act as one.

    `ns.convert` and the networks of `ns.models` build inside one of their own.

    Returns:
        A context in which predictors of a kernel size are one module.
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
    same `ns.sharing()` (torch's tied weights). On CNN-9 it has half of the parameters of separate
    predictors. A layer built outside has its own. As with all of torch's tied weights, safetensors
    saves them by `save_model`, not by `save_file`.

    Attributes:
        channels: Channels of the adaptation's output.
        hidden: Channels between the shared convolutions.
        share_adaptation: Share the adaptation as well, between layers of the same input channels,
            window and stride, such as those of one stage of a network.
        batch_norm: Normalise after all three convolutions, every layer by statistics, gains and
            biases of its own.
        batch_norm_eps: Eps of the normalisation.

    Raises:
        ValueError: a number is not positive.
    """

    channels: int = 32
    hidden: int = 64
    share_adaptation: bool = False
    batch_norm: bool = False
    batch_norm_eps: float = 1e-3

    def __post_init__(self):
        require_count("channels", self.channels)
        require_count("hidden", self.hidden)
        require_flag("share_adaptation", self.share_adaptation)
        require_flag("batch_norm", self.batch_norm)
        require_positive("batch_norm_eps", self.batch_norm_eps)

    def __call__(self, geometry: Geometry, scalars: int) -> nn.Module:
        place = replace(geometry, out_channels=1, groups=1) if self.share_adaptation else object()
        adaptation = shared_part((self, place), lambda: self._adaptation_layer(geometry))
        key = (self, geometry.kernel_size, geometry.spatial, scalars)
        head = shared_part(key, lambda: self._head_layers(geometry, scalars))
        return _Shared(self, geometry, scalars, adaptation, head)

    def _adaptation_layer(self, geometry: Geometry) -> nn.Module:
        patch = PatchConv(SphereNet(), geometry, self.channels)
        patch.reset_parameters()
        return patch

    def _head_layers(self, geometry: Geometry, scalars: int) -> nn.ModuleList:
        size = 3 if geometry.spatial else 1
        conv = CONV_LAYERS[len(geometry.kernel_size)]
        bias = not self.batch_norm
        first = conv(self.channels, self.hidden, size, padding=size // 2, bias=bias)
        second = conv(self.hidden, scalars, size, padding=size // 2, bias=bias)
        for layer in (first, second):
            reset_kernel(layer)
        return nn.ModuleList([first, second])


class _Shared(nn.Module):
    """The shared part, and each layer's own normalisation."""

    def __init__(
        self,
        spec: Shared,
        geometry: Geometry,
        scalars: int,
        adaptation: nn.Module,
        head: nn.ModuleList,
    ):
        super().__init__()
        dims = len(geometry.kernel_size)
        self.adaptation = adaptation
        self.norm1 = hidden_norm(spec, spec.channels, dims)
        self.head = head
        self.norm2 = hidden_norm(spec, spec.hidden, dims)
        self.norm3 = hidden_norm(spec, scalars, dims)

    def reset_parameters(self) -> None:
        """Initialise the shared kernels again; the adaptation resets itself."""
        for layer in self.head:
            reset_kernel(layer)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, *size) to (n, scalars, *out)."""
        first, second = self.head
        adapted = F.relu(self.norm1(self.adaptation(x)))
        return self.norm3(second(F.relu(self.norm2(first(adapted)))))


def shared_part(key: Hashable, make: Callable[[], SharedPart]) -> SharedPart:
    """The module or parameter of this key in the current `sharing`, made where it is missing."""
    pool = _POOL.get()
    if pool is None:
        return make()
    if key not in pool:
        pool[key] = make()
    return pool[key]

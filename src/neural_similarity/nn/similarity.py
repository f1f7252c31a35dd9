"""The two kinds of similarity: static, learned with the kernel, and dynamic, predicted from x."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import Predictor, SphereNet
from neural_similarity.nn.structure import Diagonal, Full, Structure
from neural_similarity.ops import fold_kernel, similarity_conv2d
from neural_similarity.ops.window import promoted

Init = Literal["identity", "released"]


@dataclass(frozen=True)
class Static:
    """One M for all positions, learned by back-propagation, starting at I. Paper, §3.2.

    It folds into the kernel, W' = W M, so that inference is a plain convolution's.
    """

    structure: Structure = field(default_factory=Diagonal)

    def build(self, geometry: Geometry) -> "StaticSimilarity":
        """The module of a layer of this geometry."""
        return StaticSimilarity(self, geometry)


@dataclass(frozen=True)
class Dynamic:
    """M(x) at every output position, predicted from the layer's input. Paper, §3.3.

    Attributes:
        structure: Maps the predicted numbers to M.
        predictor: A callable `(geometry, scalars) -> nn.Module`, such as `SphereNet`; the module
            maps the layer's input (n, c, height, width) to (n, scalars, h, w).
        init: "identity" multiplies every predicted number by a learnable gain that starts at 0,
            so that M = I exactly at first, in training and evaluation. "released" has no gain:
            M starts where the predictor's own small initialisation puts it.

    Raises:
        ValueError: the structure has no residual (or cannot be the identity) and `init` is
            "identity": M would start at zero and stay there.
    """

    structure: Structure = field(default_factory=Diagonal)
    predictor: Predictor = field(default_factory=SphereNet)
    init: Init = "identity"

    def __post_init__(self):
        if self.init not in get_args(Init):
            raise ValueError(
                f"`init` must be one of {', '.join(get_args(Init))}, got {self.init!r}"
            )
        if self.init == "identity" and not self.structure.zero_is_identity:
            raise ValueError(
                f'`init` "identity" needs a structure with a residual, got {self.structure!r}; '
                'use init="released"'
            )

    def build(self, geometry: Geometry) -> "DynamicSimilarity":
        """The module of a layer of this geometry."""
        return DynamicSimilarity(self, geometry)


SIMILARITIES: dict[str, Static | Dynamic | None] = {
    "none": None,
    "static-diagonal": Static(Diagonal()),
    "static-full": Static(Full()),
    "dynamic-diagonal": Dynamic(Diagonal()),
    "dynamic-full": Dynamic(Full()),
}
"""The named similarities; "none" is the plain layer."""


class StaticSimilarity(nn.Module):
    """A learned M and the convolution that it makes with a layer's kernel."""

    def __init__(self, spec: Static, geometry: Geometry):
        super().__init__()
        self.spec = spec
        self.structure = spec.structure.build(geometry)
        self.raw = nn.Parameter(self.structure.identity())

    def matrix(self) -> Tensor:
        """M: (K,) diagonal or (K, K), in float32 at least."""
        return self.structure(promoted(self.raw)[None])[0]

    def fold(self, weight: Tensor) -> Tensor:
        """The kernel of the plain convolution that computes the same."""
        return fold_kernel(weight, self.matrix())

    def forward(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """The layer's output for its input `x`."""
        return layer._conv_forward(x, self.fold(layer.weight), layer.bias)

    def extra_repr(self) -> str:
        """The spec."""
        return repr(self.spec)


class DynamicSimilarity(nn.Module):
    """A predictor of M and the convolution that it makes with a layer's kernel."""

    def __init__(self, spec: Dynamic, geometry: Geometry):
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        self.structure = spec.structure.build(geometry)
        self.predictor = spec.predictor(geometry, self.structure.scalars)
        gain = torch.zeros(self.structure.scalars) if spec.init == "identity" else None
        self.gain = None if gain is None else nn.Parameter(gain)

    def matrix(self, x: Tensor) -> Tensor:
        """M at every output position: (n, K, h, w) or (n, K, K, h, w), in float32 at least."""
        raw = self.predictor(x)
        scalars = self.structure.scalars
        if raw.dim() != 4 or raw.shape[1] != scalars:
            raise ValueError(
                f"the predictor must output (n, {scalars}, h, w) for {self.spec.structure!r}, "
                f"got {tuple(raw.shape)}"
            )
        raw = promoted(raw)
        if self.gain is not None:
            raw = raw * self.gain.to(raw.dtype).view(-1, 1, 1)
        return self.structure(raw)

    def forward(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """The layer's output for its input `x`, batched or not."""
        if x.dim() == 3:
            return self(layer, x[None])[0]
        m = self.matrix(x)
        x, padding = self.geometry.pad(x)
        return similarity_conv2d(
            x, layer.weight, m, layer.bias, layer.stride, padding, layer.dilation, layer.groups
        )

    def extra_repr(self) -> str:
        """The spec."""
        return repr(self.spec)

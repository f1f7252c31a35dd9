"""The two kinds of similarity: static, learned with the kernel, and dynamic, predicted from x."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from neural_similarity.choices import require_known
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.modes import evaluation_mode
from neural_similarity.nn.predictor import Predictor, SphereNet, in_float32
from neural_similarity.nn.shared import shared_part
from neural_similarity.nn.spec import Spec
from neural_similarity.nn.standard import standard_frame, standard_parts
from neural_similarity.nn.structure import Diagonal, Full, Structure, StructureModule
from neural_similarity.ops import fold_kernel
from neural_similarity.ops.layer import predicted_conv, takes_layer
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.similarity import dynamic_conv
from neural_similarity.ops.window import autocast_dtype, promote_dtype

Init = Literal["identity", "released"]

MOST_SCALARS = 25**2
"""Most entries predicted per position, a full 5×5 M's, unless `ns.convert` is asked for more."""


@dataclass(frozen=True, repr=False)
class Static(Spec):
    """One M for all positions, learned by back-propagation, starting at I. Paper, §3.2.

    It folds into the kernel, W' = W M, so inference is a plain convolution.

    Attributes:
        structure: Maps the learned parameters to M.
        init: "identity", as far as the structure has it. "released" starts a diagonal M of a 2-d
            kernel as the authors' code does: at eye(kh, kw) flattened, so that of 3×3 taps only the
            three on the kernel's own diagonal start at 1 and six start at 0, where I has nine ones.

    Raises:
        ValueError: `structure` is not a `Structure`, or `init` is unknown, or "released" for a
            structure other than `Diagonal`.
    """

    structure: Structure = field(default_factory=Diagonal)
    init: Init = "identity"

    def __post_init__(self):
        _check_structure(self.structure)
        require_known("init", self.init, get_args(Init))
        if self.init == "released" and not isinstance(self.structure, Diagonal):
            raise ValueError(f'`init` "released" needs a Diagonal, got {self.structure!r}')

    def build(self, geometry: Geometry) -> "StaticSimilarity":
        """The module of a layer of this geometry."""
        return StaticSimilarity(self, geometry)


@dataclass(frozen=True, repr=False)
class Dynamic(Spec):
    """M(x) at every output position, predicted from the layer's input. Paper, §3.3.

    Attributes:
        structure: Maps the predicted values to M.
        predictor: A callable `(geometry, scalars) -> nn.Module`, such as `SphereNet`; the module
            maps the layer's input (n, c, height, width) to (n, scalars, h, w). Or such a module
            itself, for a single layer.
        init: "identity" multiplies every predicted value by a learnable gain that starts at 0,
            so that M = I exactly at first, in training and evaluation (with a dilation, the part of
            I that it has). "released" has no gain: M starts where the predictor's own small
            initialisation puts it.

    Raises:
        ValueError: an argument has another type; or the structure cannot be predicted, or has no
            residual (or cannot be the identity) and `init` is "identity": M would start at zero and
            stay there.
    """

    structure: Structure = field(default_factory=Diagonal)
    predictor: Predictor | nn.Module = field(default_factory=SphereNet)
    init: Init = "identity"

    def __post_init__(self):
        _check_structure(self.structure)
        is_class = isinstance(self.predictor, type) and issubclass(self.predictor, Spec)
        if is_class or not callable(self.predictor):
            raise ValueError(
                "`predictor` must be a callable (geometry, scalars) -> nn.Module such as "
                f"ns.SphereNet(), got {self.predictor!r}"
            )
        require_known("init", self.init, get_args(Init))
        if not self.structure.dynamic or self.structure.shared:
            raise ValueError(f"`structure` must not be for static M only, got {self.structure!r}")
        if self.init == "identity" and not self.structure.zero_is_identity:
            raise ValueError(
                f'`init` "identity" needs a structure with a residual, got {self.structure!r}; '
                'use init="released"'
            )

    def build(self, geometry: Geometry) -> "DynamicSimilarity":
        """The module of a layer of this geometry."""
        return DynamicSimilarity(self, geometry)


def _check_structure(structure: object) -> None:
    if not isinstance(structure, Structure):
        raise ValueError(f"`structure` must be a Structure such as ns.Full(), got {structure!r}")


SIMILARITIES: dict[str, Static | Dynamic | None] = {
    "none": None,
    "static-diagonal": Static(Diagonal()),
    "static-full": Static(Full()),
    "dynamic-diagonal": Dynamic(Diagonal()),
    "dynamic-full": Dynamic(Full()),
}
"""The named similarities; "none" is the plain layer."""


def predicted_scalars(similarity: Static | Dynamic, geometry: Geometry) -> int:
    """How many numbers per output position a similarity predicts in a layer; 0 if it is static.

    Raises:
        ValueError: the structure does not fit the layer.
    """
    scalars = similarity.structure.build(geometry).scalars
    return scalars if isinstance(similarity, Dynamic) else 0


class StaticSimilarity(nn.Module):
    """A learned M; it folds into a layer's kernel."""

    def __init__(self, spec: Static, geometry: Geometry):
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        self.structure = spec.structure.build(geometry)
        start = partial(nn.Parameter, self._initial_raw())
        self.raw = (
            shared_part((spec, self.structure.scalars), start) if spec.structure.shared else start()
        )

    def _initial_raw(self) -> Tensor:
        raw, size = self.structure.initial(), self.geometry.kernel_size
        if self.spec.init == "identity":
            return raw
        if len(size) != 2:
            raise ValueError(f'`init` "released" needs a kernel of two dimensions, got {size}')
        # The authors' code takes eye(3) for the identity of nine taps.
        return raw + torch.eye(*size).flatten() - 1

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset M to its start."""
        self.raw.copy_(self._initial_raw())

    def matrix(self) -> Tensor:
        """M: (K,) diagonal or (K, K), with an axis of blocks first if there are any; float32."""
        # Between forward passes FSDP keeps a part of it, a DTensor, whose import takes 0.5 s.
        whole = getattr(self.raw, "full_tensor", None)
        # `stack` copies: a view of a parameter requires gradients even under no_grad, on which
        # torch's FlopCounterMode fails.
        return self.structure(promote_dtype(torch.stack([whole() if whole else self.raw])))[0]

    def full_matrix(self) -> Tensor:
        """M as a matrix (K, K), also where it is diagonal; an axis of blocks comes first."""
        m = self.matrix()
        return m if m.dim() == 2 + (self.structure.blocks is not None) else torch.diag_embed(m)

    def fold(self, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The kernel of the plain layer that computes the same, in `dtype` or that of `weight`."""
        kernel, groups = weight.reshape(len(weight), -1, self.geometry.taps), self.geometry.groups
        folded = fold_kernel(kernel, self.matrix(), self.structure.blocks, groups, dtype=dtype)
        return folded.view(weight.shape)

    def forward(self, layer: "Layer", x: Tensor) -> Tensor:
        """The layer's output for its input `x`."""
        weight = layer.weight
        # Of autocast's type at once, to which the convolution would cast it.
        dtype = autocast_dtype(weight) if isinstance(layer, nn.Module) else weight.dtype
        return layer.static_forward(x, self.fold(weight, dtype))

    def extra_repr(self) -> str:
        """The spec, and how many numbers are learned."""
        return f"{self.spec!r}, {self.raw.numel()} scalars"


class DynamicSimilarity(nn.Module):
    """A predictor of M, and the convolution with that M."""

    def __init__(self, spec: Dynamic, geometry: Geometry):
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        self.window = geometry.window
        self.structure = spec.structure.build(geometry)
        make, scalars = spec.predictor, self.structure.scalars
        module = make if isinstance(make, nn.Module) else make(geometry, scalars)
        if not isinstance(module, nn.Module):
            raise ValueError(f"`predictor` must make an nn.Module, got {module!r} from {make!r}")
        self.predictor = module
        gains = torch.zeros(self.structure.scalars)
        self.gain = nn.Parameter(gains) if spec.init == "identity" else None
        is_base = type(self) is DynamicSimilarity
        self.frame = standard_frame(self.structure, geometry, spec.predictor) if is_base else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the gains, so that M = I again if it started so; the predictor resets itself."""
        if self.gain is not None:
            self.gain.zero_()

    def matrix(self, x: Tensor) -> Tensor:
        """M at every output position of x (n, c, *size), in float32 at least.

        (n, K, *out) or (n, K, K, *out), with an axis of blocks after n if there are any.
        """
        output = self.geometry.output_size(x.shape[2:])
        m = self._matrix_at(self.structure, x, output)
        return m.expand(*m.shape[: m.dim() - len(output)], *output)

    def _matrix_at(self, structure: StructureModule, x: Tensor, output: tuple[int, ...]) -> Tensor:
        raw, gain = self._predict_raw(structure, x, output), self.gain
        return structure(promote_dtype(raw)) if gain is None else structure.predicted(raw, gain)

    def _predict_raw(
        self, structure: StructureModule, x: Tensor, output: tuple[int, ...]
    ) -> Tensor:
        grows = getattr(self.spec.predictor, "GROWS", False)
        half = autocast_dtype(x) == torch.float16
        raw = in_float32(self.predictor, x) if grows and half else self.predictor(x)
        expected = (x.shape[0], structure.scalars, *output)
        an_image = (*expected[:2], *[1] * len(output))
        if tuple(raw.shape) not in (expected, an_image):
            raise ValueError(
                f"the predictor must output {expected}, the scalars of {self.spec.structure!r} at "
                f"every output position of {self.geometry}, or once per image, {an_image}, got "
                f"{tuple(raw.shape)}"
            )
        return raw

    @torch.no_grad()
    def check_predictor(self) -> None:
        """Predict once from zeros, in evaluation mode, to check that the predictor fits the layer.

        Raises:
            ValueError: the predictor does not fit.
        """
        size = self.geometry.in_channels, *self.geometry.sample_size()
        x = next(self.parameters()).new_zeros(1, *size)
        with evaluation_mode(self.predictor):
            self._predict_raw(self.structure, x, self.geometry.output_size(x.shape[2:]))

    def convolve_maps(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`convolve` of x, batched or not.

        Raises:
            ValueError: x has another shape, type or device than `weight` asks for.
        """
        dims, channels = weight.dim() - 2, self.geometry.in_channels
        if x.dim() not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
            raise ValueError(
                f"`input` must be (n, {channels}, *size) or ({channels}, *size) of {dims} sizes, "
                f"got {tuple(x.shape)}"
            )
        check_type(x, weight)
        if x.dim() == dims + 1:
            return self.convolve(x[None], weight, bias)[0]
        return self.convolve(x, weight, bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of x (n, c, *size) with M between `weight` and the patches.

        The layer has already checked that x, `weight` and `bias` fit the geometry.
        """
        padded, frame = self.geometry.pad_input(x), self.frame
        if frame is not None and takes_layer(x, weight, frame):
            made_of = self.spec.predictor, self.predictor, self.structure, self.gain
            parts = standard_parts(frame, *made_of, (padded, weight, bias))
            if parts is not None:
                return predicted_conv(parts, frame)
        structure = self.structure
        output = self.window.output_size(padded.shape[2:])
        m = self._matrix_at(structure, x, output)
        given = Operands(padded, weight, m, self.window, self.geometry.groups)
        return dynamic_conv(given, output, bias, structure.blocks)

    def forward(self, layer: "Layer", x: Tensor) -> Tensor:
        """The layer's output for its input `x`."""
        return layer.dynamic_forward(x, self)

    def extra_repr(self) -> str:
        """The spec, and how many numbers are predicted."""
        return f"{self.spec!r}, {self.structure.scalars} scalars a position"


def check_type(x: Tensor, weight: Tensor) -> None:
    """Check the input's dtype and device against the kernel's, before the predictor runs."""
    if x.device != weight.device:
        raise ValueError(f"`input` must be on the kernel's {weight.device}, got {x.device}")
    same = x.dtype == weight.dtype or autocast_dtype(x) == autocast_dtype(weight)
    if not same or not x.is_floating_point():
        raise ValueError(f"`input` must have the kernel's dtype {weight.dtype}, got {x.dtype}")


def check_ready(similarity: object, layers: Collection[str]) -> None:
    """Raise a `ValueError` where several layers would share one module as their predictor."""
    if isinstance(getattr(similarity, "predictor", None), nn.Module) and len(layers) > 1:
        raise ValueError(
            f"`predictor` must make a module for each layer, got one module for {len(layers)}: "
            f"{', '.join(layers)}"
        )


@runtime_checkable
class Layer(Protocol):
    """The interface that a similarity needs of its layer."""

    weight: nn.Parameter

    def static_forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """torch's own operation with `kernel` for the weight."""
        ...

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The layer's output, by way of `similarity.convolve`."""
        ...

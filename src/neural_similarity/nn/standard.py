"""Dynamic similarities whose layer is one operator: of the default and the cheap predictors."""

from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from neural_similarity.nn.cheap import Light, LightModule, Pooled, PooledModule
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import CONV_LAYERS, PatchConv, SphereNet, TwoLayersModule
from neural_similarity.nn.structure import DiagonalModule, FullModule, StructureModule
from neural_similarity.ops.layer import same_window
from neural_similarity.ops.operands import LayerFrame, LayerTensors
from neural_similarity.ops.window import Window

_CONV_LAYERS = tuple(CONV_LAYERS.values())
_LIGHT_EPS = 1e-4


def standard_frame(
    structure: StructureModule, geometry: Geometry, spec: object
) -> LayerFrame | None:
    """The frame of a layer's operator; None where `spec`, its predictor's, has no operator."""
    known = type(structure) in (DiagonalModule, FullModule) and structure.residual
    if not known or not geometry.spatial:
        return None
    window, groups = geometry.window, geometry.groups
    same, full = same_window(geometry.kernel_size), type(structure) is FullModule
    if type(spec) is Light and spec.bound == "tanh":
        hidden = LightModule.hidden_channels(spec, geometry)
        factor = (hidden * geometry.taps) ** 0.5
        return LayerFrame(window, same, groups, _LIGHT_EPS, factor, full, "light")
    if type(spec) is Pooled and spec.bound == "tanh":
        # A single channel has a deviation beside its average, and mirrored pixels do not count.
        if geometry.in_channels == 1 or geometry.padding_mode != "zeros":
            return None
        factor = geometry.in_channels**0.5
        return LayerFrame(window, same, groups, 0.0, factor, full, "pooled")
    if type(spec) is not SphereNet or spec.normalize == "both":
        return None
    if spec.batch_norm or spec.per_image or spec.bounded or spec.resolution > 1:
        return None
    factor = (geometry.in_channels * geometry.taps) ** 0.5 if spec.normalize == "rms" else 1.0
    last = same_window((spec.last_kernel_size,) * len(geometry.kernel_size))
    return LayerFrame(window, last, groups, spec.eps, factor, full, "sphere")


def standard_parts(
    frame: LayerFrame,
    spec: object,
    predictor: nn.Module,
    structure: StructureModule,
    gain: Tensor | None,
    operands: tuple[Tensor, Tensor, Tensor | None],  # x, W and the bias
) -> LayerTensors | None:
    """The operator's tensors; None where a module is not as the frame and `spec` have it.

    The operator calls no module, so a hook, a replaced or a parametrised module declines it.
    """
    kind = FullModule if frame.full else DiagonalModule
    if type(structure) is not kind or not structure.residual or gain is None:
        return None
    layers = _standard_layers(frame, spec, predictor)
    if layers is None or _has_any_global_hook():
        return None
    first, last = layers
    taps, hidden = prod(frame.window.kernel_size), first.weight.shape[0]
    scalars = taps**2 if frame.full else taps
    size = frame.window.kernel_size
    first_size = {"sphere": size, "light": (1,) * len(size), "pooled": ()}[frame.predictor]
    last_size = getattr(last, "kernel_size", ())  # The weights of a linear layer have no window.
    first_bias = first.bias if frame.predictor == "pooled" else None
    fits = (
        first.weight.shape == (hidden, operands[0].shape[1], *first_size)
        and last.weight.shape == (scalars, hidden, *last_size)
        and (first_bias is None or first_bias.shape == (hidden,))
        and (last.bias is None or last.bias.shape == (scalars,))
        and gain.shape == (scalars,)
    )
    if not fits:
        return None
    for module in (predictor, first, last):
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or "forward" in module.__dict__
        ):
            return None
    return LayerTensors(*operands, first.weight, first_bias, last.weight, last.bias, gain)


_PREDICTORS = {
    "sphere": (TwoLayersModule, "patch"),
    "light": (LightModule, "first"),
    "pooled": (PooledModule, "first"),
}
"""The module of each predictor, and the name of its first layer."""


def _standard_layers(frame: LayerFrame, spec: object, predictor: Any) -> tuple[Any, Any] | None:
    """The two layers of a predictor, if they are as it made them."""
    kind, name = _PREDICTORS[frame.predictor]
    if type(predictor) is not kind or predictor.spec is not spec:
        return None
    first, last, ones = getattr(predictor, name), predictor.last, (1,) * len(frame.window.stride)
    if frame.predictor == "sphere":
        same = type(first) is PatchConv and _has_window(last, frame.last)
    elif frame.predictor == "pooled":
        same = type(first) is type(last) is nn.Linear
    else:
        pixel = Window(ones, ones, (0,) * len(ones), ones)
        known = _has_window(first, pixel) and first.bias is None and _has_window(last, frame.window)
        # The factor is √(hidden channels · K), see `standard_frame`.
        same = known and len(first.weight) * prod(last.kernel_size) == round(frame.factor**2)
    return (first, last) if same else None


def _has_window(layer: Any, window: Window) -> bool:
    """Whether a layer is torch's convolution with this window alone."""
    return (
        type(layer) in _CONV_LAYERS
        and (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == window
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )

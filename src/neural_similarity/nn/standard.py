"""Dynamic similarities whose layer is one operator: those of the default predictor."""

from math import prod

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.predictor import CONV_LAYERS, PatchConv, SphereNet, TwoLayersModule
from neural_similarity.nn.structure import DiagonalModule, FullModule, StructureModule
from neural_similarity.ops.layer import same_window
from neural_similarity.ops.operands import LayerFrame, LayerTensors
from neural_similarity.ops.window import Window

_CONV_LAYERS = tuple(CONV_LAYERS.values())


def standard_frame(
    structure: StructureModule, geometry: Geometry, spec: object
) -> LayerFrame | None:
    """The frame of a layer's operator; None where `spec`, its predictor's, has no operator."""
    if not geometry.spatial or not isinstance(spec, SphereNet) or type(spec) is not SphereNet:
        return None
    known = type(structure) in (DiagonalModule, FullModule) and structure.residual
    more = spec.batch_norm or spec.per_image or spec.bounded or spec.resolution > 1
    if not known or more or spec.normalize == "both":
        return None
    factor = (geometry.in_channels * geometry.taps) ** 0.5 if spec.normalize == "rms" else 1.0
    full = type(structure) is FullModule
    last = same_window((spec.last_kernel_size,) * len(geometry.kernel_size))
    return LayerFrame(geometry.window, last, geometry.groups, spec.eps, factor, full)


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
    if type(structure) is not kind or not structure.residual:
        return None
    if type(predictor) is not TwoLayersModule or predictor.spec is not spec:
        return None
    patch, last = predictor.patch, predictor.last
    if type(patch) is not PatchConv or type(last) not in _CONV_LAYERS or gain is None:
        return None
    window = Window(last.kernel_size, last.stride, last.padding, last.dilation)
    same = window == frame.last and last.groups == 1
    if not same or last.padding_mode != "zeros" or _has_any_global_hook():
        return None
    hidden, taps = patch.weight.shape[0], prod(frame.window.kernel_size)
    scalars = taps**2 if frame.full else taps
    fits = (
        patch.weight.shape == (hidden, operands[0].shape[1], *frame.window.kernel_size)
        and last.weight.shape == (scalars, hidden, *last.kernel_size)
        and (last.bias is None or last.bias.shape == (scalars,))
        and gain.shape == (scalars,)
    )
    if not fits:
        return None
    for module in (predictor, patch, last):
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or "forward" in module.__dict__
        ):
            return None
    return LayerTensors(*operands, patch.weight, last.weight, last.bias, gain)

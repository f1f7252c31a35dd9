"""Dynamic similarities whose layer is one operator: those of the default predictor."""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from neural_similarity.nn.predictor import CONV_LAYERS, PatchConv, SphereNet, TwoLayersModule
from neural_similarity.nn.structure import DiagonalModule, FullModule
from neural_similarity.ops.layer import LayerFrame, same_window
from neural_similarity.ops.operands import LayerTensors
from neural_similarity.ops.window import Window

_CONV_LAYERS = tuple(CONV_LAYERS.values())

if TYPE_CHECKING:
    from neural_similarity.nn.similarity import DynamicSimilarity


def standard_frame(similarity: "DynamicSimilarity") -> LayerFrame | None:
    """The frame of the layer's operator; None where the layer is made of its parts."""
    structure, geometry, spec = similarity.structure, similarity.geometry, similarity.spec.predictor
    if not geometry.spatial or not isinstance(spec, SphereNet) or type(spec) is not SphereNet:
        return None
    known = type(structure) in (DiagonalModule, FullModule) and structure.residual
    more = spec.batch_norm or spec.per_image or spec.bounded or spec.resolution > 1
    if not known or more or spec.normalize == "both":
        return None
    factor = (geometry.in_channels * geometry.taps) ** 0.5 if spec.normalize == "rms" else 1.0
    full = type(structure) is FullModule
    last = same_window((spec.last_kernel_size,) * len(geometry.kernel_size))
    return LayerFrame(similarity.window, last, geometry.groups, spec.eps, factor, full)


def standard_parts(
    similarity: "DynamicSimilarity", x: Tensor, weight: Tensor, bias: Tensor | None
) -> LayerTensors | None:
    """The operator's tensors; None where a module of the predictor is not as it was built.

    The operator calls no module, so a hook, a replaced or a parametrised module declines it.
    """
    predictor: Any = similarity.predictor
    if type(predictor) is not TwoLayersModule or predictor.spec is not similarity.spec.predictor:
        return None
    patch, last, gain = predictor.patch, predictor.last, similarity.gain
    if type(patch) is not PatchConv or type(last) not in _CONV_LAYERS or gain is None:
        return None
    window = Window(last.kernel_size, last.stride, last.padding, last.dilation)
    same = similarity.frame and window == similarity.frame.last and last.groups == 1
    if not same or last.padding_mode != "zeros" or _has_any_global_hook():
        return None
    hidden, scalars = patch.weight.shape[0], similarity.structure.scalars
    fits = (
        patch.weight.shape == (hidden, x.shape[1], *similarity.window.kernel_size)
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
    return LayerTensors(x, weight, bias, patch.weight, last.weight, last.bias, gain)

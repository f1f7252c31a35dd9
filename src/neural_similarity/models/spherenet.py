"""SphereNet-9, the hyperspherical network of Table 8 (App. B.2)."""

from functools import partial

from torch import nn

from neural_similarity.models.building import (
    NamedSequential,
    build_sequential,
    check_no_similarity,
    check_sizes,
    conv_block,
    conv_stages,
    pad_layer,
)
from neural_similarity.models.plain import ATTENTIVE, SHRINK, WIDE, Variant, check_variant
from neural_similarity.nn import SphereConv2d
from neural_similarity.nn.text import Similarity, SimilarityName
from neural_similarity.ops.sphere import Angle


def spherenet9(
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1,
    similarity: Similarity | SimilarityName | None = None,
    variant: Variant = "paper",
    self_attention: bool = False,
    angle: Angle = "cosine",
) -> NamedSequential:
    """CNN-9 of hyperspherical convolutions: 128, 192 and 256 filters.

    [3×3, 128]×3, pool, [3×3, 192]×3, pool, [3×3, 256]×3, pool, FC 256, classifier. The nine
    convolutions and the fully connected layer, a convolution over the whole map, are
    `ns.SphereConv2d` without bias, each followed by batch normalisation and ReLU; the classifier is
    linear. Kernels start at He's initialisation. Images are padded as in `cnn9`.

    The paper names the filters and "the CNN-9 architecture in [39]" only. The cosine, the fully
    connected layer as a SphereConv and the places of the attention are those of the authors' code
    (https://github.com/wy1iu/NSL, `nsl_global_ns`), which also adds 1e-4 times
    `ns.orthogonality(model, unit=False)` to the loss instead of decaying the kernels, and trains
    with Adam at 1e-3.

    Args:
        similarity: None; hyperspherical convolutions have a similarity of their own.
        variant: "released" has no normalisation and no ReLU after the fully connected layer, and
            no bias in the classifier.
        self_attention: Put `ns.SelfAttention`, of hyperspherical 1×1 convolutions, after the first
            two pools.
        angle: Function of the angle, see `ns.SphereConv2d`.
    """
    check_sizes(num_classes, in_channels, image_size)
    check_variant(variant)
    check_no_similarity(similarity, "a SphereNet")
    convolution = partial(SphereConv2d, angle=angle)
    channels, depths, hidden, attended = (ATTENTIVE if self_attention else WIDE).times_width(width)
    whole = convolution(channels[-1], hidden, -(-image_size // SHRINK), bias=False)
    layers = pad_layer(image_size, SHRINK) | conv_stages(in_channels, channels, depths, convolution)
    layers |= {
        "fc": whole if variant == "released" else conv_block(whole),
        "flatten": nn.Flatten(),
        "classifier": nn.Linear(hidden, num_classes, bias=variant != "released"),
    }
    return build_sequential(layers, None, channels[:attended], convolution)

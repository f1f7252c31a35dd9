"""What a network costs, in numbers that no machine changes."""

import torch
from torch import nn

from neural_similarity.convert import fold


def multiplications(model: nn.Module, channels: int, image_size: int) -> int:
    """Multiply-accumulates of one image in evaluation mode, static similarities folded.

    Convolutions and matrix products, as `torch.utils.flop_counter` counts them, and the library's
    operators; activations, normalisation and pooling are left out, as is usual.
    """
    # Imported here: the counter imports triton, which takes longer than the rest of the library.
    from torch.utils.flop_counter import FlopCounterMode

    from neural_similarity.ops import flops as flops

    # The counter hooks every module and wants parameters that need no gradient.
    model = fold(model, dynamic="keep").eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, channels, image_size, image_size))
    return counter.get_total_flops() // 2

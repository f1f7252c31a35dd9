"""What a network costs: its parameters, and its multiplications for one image."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.choices import require_count
from neural_similarity.nn.modes import check_module, preserving_state


def parameters(model: nn.Module) -> int:
    """Number of parameters, frozen ones, similarities and predictors included.

    Returns:
        The number of parameters.
    """
    check_module(model)
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def macs(model: nn.Module, *size: int | Sequence[int]) -> int:
    """Multiply-adds of the forward pass for one input, in evaluation mode.

    It counts convolutions, linear layers and matrix products, as torch's counter does; a dynamic
    similarity adds its predictor's and C·K (diagonal) or C·K² (full) per output position.
    Normalisation, activations and pools are not counted. A static similarity counts its fold into
    the kernel, unless `ns.fold` has done it. Nothing is computed: only shapes go through a copy.

    Args:
        model: Any network with one input.
        size: Size of the input without its batch dimension: (channels, height, width), or the three
            numbers as arguments.

    Returns:
        Multiplications of one forward pass of one image.

    Raises:
        ValueError: `model` is no module, or a number is below 1.
    """
    # Here, because torch's counter imports triton, which takes longer than all of the library.
    from torch.utils.flop_counter import FlopCounterMode

    check_module(model)
    sizes = [n for part in size for n in (part if isinstance(part, Sequence) else [part])]
    for number in sizes:
        require_count("size", number)
    model = deepcopy(model).to("meta").eval().requires_grad_(False)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and isinstance(module, _BatchNorm):  # of which torch is slowest to infer shapes
            model.set_submodule(name, nn.Identity())
    dtype = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    with preserving_state(model), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *sizes, dtype=dtype, device="meta"))
    return counter.get_total_flops() // 2

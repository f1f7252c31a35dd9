"""What a module is and does: its mode, its hooks."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Hold networks in evaluation mode; afterwards restore the mode of every module.

    A normalisation in evaluation mode inside a network in training mode therefore stays so.
    """
    modes = {part: part.training for model in models for part in model.modules()}
    try:
        for model in models:
            model.eval()
        yield
    finally:
        # By `train` where the mode differs: torchvision's feature extractors do more than set it.
        for part, training in modes.items():
            if part.training != training:
                part.train(training)


def check_module(model: object, argument: str = "model") -> None:
    """Check that `model` is a module.

    Raises:
        ValueError: it names the argument and what came.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`{argument}` must be an nn.Module, got {model!r}")


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's calls, one of its own or one of all modules."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    return any((*hooks, module._backward_pre_hooks)) or bool(_has_any_global_hook())

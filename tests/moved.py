"""Similarities away from where they start."""

from torch import nn


def moved(model: nn.Module, std: float = 0.5) -> nn.Module:
    """The model itself, with its similarities well away from the identity."""
    for name, parameter in model.named_parameters():
        if name.endswith(("raw", "gain")):
            nn.init.normal_(parameter, std=std)
    return model

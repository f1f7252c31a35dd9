"""Networks away from where they start, layers that write their kernel, compilation."""

import torch
from torch import nn


class Clamped(nn.Conv2d):
    """Writes its weight in `forward`."""

    def forward(self, x):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


def compiled(model):
    """By torch's tracer alone."""
    return torch.compile(model, backend="eager")


def moved(model: nn.Module, std: float = 0.5) -> nn.Module:
    """The model itself, with its similarities well away from the identity."""
    for name, parameter in model.named_parameters():
        if name.endswith(("raw", "gain")):
            nn.init.normal_(parameter, std=std)
    return model


@torch.no_grad()
def trained_away(model: nn.Module, std: float = 0.2) -> nn.Module:
    """The model itself, in evaluation mode, with noise on all that trains."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=std)
    return model.eval()


def train_steps(model: nn.Module, x: torch.Tensor, steps: int = 2, lr: float = 0.1) -> nn.Module:
    """The model itself, in evaluation mode, after gradient descent of all that trains."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model.train()(x).square().sum().backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def learned(model: nn.Module) -> nn.Module:
    """The model, with all that its similarities hold away from its start, statistics too."""
    for name, tensor in model.state_dict().items():
        if "similarity." in name and tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor) * 0.3)
    return model

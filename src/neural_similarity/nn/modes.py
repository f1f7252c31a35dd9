"""What a module is and does: its mode, its hooks; running networks without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def preserving_state(*models: nn.Module) -> Iterator[None]:
    """Restore networks that run inside: the mode of every module, buffers, gradients.

    Also `requires_grad`, and the random state of the CPU, of the networks' GPUs and of generators
    that modules hold. Inside, parameters have no gradient. Parameters are not copied: a `forward`
    that writes its own is not undone.
    """
    modules = list(dict.fromkeys(part for model in models for part in model.modules()))
    modes = [(module, module.training) for module in modules]
    # The buffers, as a module may replace them, and the values of those that hold any.
    places = [(m, name, b) for m in modules for name, b in m.named_buffers(recurse=False)]
    values = {b: b.detach().clone() for _, _, b in places if not (is_lazy(b) or b.is_meta)}
    held = {g for m in modules for g in vars(m).values() if isinstance(g, torch.Generator)}
    states = [(generator, generator.get_state()) for generator in held]
    parameters = dict.fromkeys(p for model in models for p in model.parameters())
    gradients = [(p, p.requires_grad, p.grad) for p in parameters]
    gpus = {p.device.index for p in parameters if p.is_cuda}
    with torch.random.fork_rng(sorted(gpus)):
        for parameter in parameters:
            parameter.grad = None  # so that nothing is added to it
        try:
            yield
        finally:
            # By `train` where the mode differs: torchvision's extractors do more than set it.
            for module, training in modes:
                if module.training != training:
                    module.train(training)
            for module, name, buffer in places:
                if getattr(module, name, None) is not buffer:
                    setattr(module, name, buffer)
            for buffer, value in values.items():
                if not torch.equal(buffer, value):
                    buffer.data.copy_(value)  # `data`: a graph that saved the buffer stays valid.
            for generator, state in states:
                generator.set_state(state)
            for parameter, requires_grad, gradient in gradients:
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Hold networks in evaluation mode; afterwards they are as before, see `preserving_state`.

    A normalisation in evaluation mode inside a network in training mode therefore stays so.
    """
    with preserving_state(*models):
        for model in models:
            model.eval()
        yield


def check_module(model: object, argument: str = "model") -> None:
    """Check that `model` is a module.

    Raises:
        ValueError: it names the argument and what came.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`{argument}` must be an nn.Module, got {model!r}")


def first_parameter(layer: nn.Module) -> nn.Parameter:
    """The parameter whose device and type a layer's similarity gets, the layer's own if it has any.

    A wrapper, such as a parametrization, may hold all of them.
    """
    return next(layer.parameters(recurse=False), next(layer.parameters()))


def is_made_by(tool: str, thing: object) -> bool:
    """Whether the class of a thing, or a base of it, comes from the package `tool`."""
    return any(kind.__module__.split(".")[0] == tool for kind in type(thing).__mro__)

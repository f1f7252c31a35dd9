"""Changes of a network that are made as a whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def whole_or_nothing(model: nn.Module) -> Iterator[None]:
    """Restore class and attributes of every module if the block fails or is interrupted.

    Tensors are put back as the objects that they were, with their `requires_grad`; the block may
    not write into them.
    """
    before = [(module, type(module), _attributes(module)) for module in model.modules()]
    learned = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            module.__class__ = kind
            vars(module).clear()
            for name, (value, items) in attributes.items():
                if items is not None:  # The dict stays the same: handles of hooks refer to it.
                    value.clear()
                    value.update(items)
                vars(module)[name] = value
        for parameter, requires_grad in learned:
            parameter.requires_grad = requires_grad
        raise


def _attributes(module: nn.Module) -> dict[str, tuple[Any, dict[Any, Any] | None]]:
    """The attributes of a module, and the items of those that are dicts (parameters, hooks)."""
    return {
        name: (value, dict(value) if isinstance(value, dict) else None)
        for name, value in vars(module).items()
    }

"""The state of a network before it was trained: a digest of every tensor, kept on its module.

It is a plain attribute, so that copies and pickles have it and state dicts do not. Each module has
the digests of its own tensors only, so that a network may be wrapped, or used in parts.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neural_similarity.conversion.adapter_file import tensor_digest

_ATTRIBUTE = "_backbone_state"


class BackboneState(NamedTuple):
    """The state of the tensors of one module.

    Attributes:
        digests: Type and SHA-256 of each when `convert` or `load_adapter` saw it.
        trained: Names of tensors that were left trainable, or that an adapter brought.
        frozen: Whether `freeze_backbone` froze the others.
    """

    digests: dict[str, tuple[torch.dtype, bytes]]
    trained: frozenset[str] = frozenset()
    frozen: bool = False


States = dict[nn.Module, BackboneState]


def remember_state(model: nn.Module, similarities: Collection[nn.Module]) -> None:
    """Keep the digest of every tensor outside of similarities that has none yet."""
    for module, state in take_states(model, similarities).items():
        known = _state_of(module)
        set_state(module, known._replace(digests=state.digests | known.digests))


def take_states(model: nn.Module, similarities: Collection[nn.Module]) -> States:
    """The states of all modules outside of similarities, as they are now."""
    digests: dict[int, bytes | None] = {}
    states: States = {}
    for module in modules_outside(model, similarities):
        own = own_tensors(module)
        for tensor in own.values():
            if id(tensor) not in digests:
                digests[id(tensor)] = tensor_digest(tensor)
        known = {name: (t.dtype, d) for name, t in own.items() if (d := digests[id(t)])}
        states[module] = BackboneState(known)
    return states


def set_state(module: nn.Module, state: BackboneState) -> None:
    """Keep a state on its module."""
    setattr(module, _ATTRIBUTE, state)


def forget_states(model: nn.Module) -> None:
    """Remove what `remember` and `mark_trained` keep."""
    for module in model.modules():
        vars(module).pop(_ATTRIBUTE, None)


def mark_trained(
    model: nn.Module, similarities: Collection[nn.Module], tensors: Collection[Tensor], frozen: bool
) -> None:
    """Record that these tensors train, besides earlier ones, and whether all others are frozen."""
    ids = {id(tensor) for tensor in tensors}
    for module in modules_outside(model, similarities):
        known = _state_of(module)
        trained = {name for name, tensor in own_tensors(module).items() if id(tensor) in ids}
        set_state(module, known._replace(trained=known.trained | trained, frozen=frozen))


def mark_unfrozen(model: nn.Module) -> None:
    """Record that everything trains."""
    for module in model.modules():
        if _ATTRIBUTE in vars(module):
            set_state(module, _state_of(module)._replace(frozen=False))


def is_trained(module: nn.Module, name: str) -> bool:
    """Whether a tensor of a module was left trainable, or trains although the rest is frozen."""
    state = _state_of(module)
    return name in state.trained or (state.frozen and getattr(module, name).requires_grad)


def may_have_moved(module: nn.Module, name: str, unknown: bool = True) -> bool:
    """Whether a tensor was not frozen and differs from what `convert` saw.

    `unknown` is the answer for a tensor that `convert` did not see.
    """
    state, tensor = _state_of(module), own_tensors(module).get(name)
    if state.frozen or name in state.trained:
        return False
    known = state.digests.get(name)
    if known is None or tensor is None:
        return unknown
    return known != (tensor.dtype, tensor_digest(tensor))


def modules_outside(model: nn.Module, similarities: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The modules of a network that are not in a similarity and have tensors of their own."""
    inside = {part for similarity in similarities for part in similarity.modules()}
    for module in model.modules():
        if module not in inside and own_tensors(module):
            yield module


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module that are in its state dict, without its children's.

    `num_batches_tracked` is left out, as nothing depends on it.
    """
    passing = {*module._non_persistent_buffers_set, "num_batches_tracked"}
    named = {**module._parameters, **module._buffers}
    return {n: t for n, t in named.items() if t is not None and n not in passing}


def _state_of(module: nn.Module) -> BackboneState:
    return vars(module).get(_ATTRIBUTE) or BackboneState({})

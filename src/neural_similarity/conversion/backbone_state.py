"""The state of a network before it was trained: a digest of every tensor, kept on its module.

It is a plain attribute, so that copies and pickles have it and state dicts do not. Each module has
the digests of its own tensors only, so that a network may be wrapped, or used in parts.
"""

import ctypes
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_ATTRIBUTE = "_backbone_state"
Digest = tuple[torch.dtype, bytes] | None
"""Type and SHA-256 of a tensor, None if this process does not hold its bytes."""


class BackboneState(NamedTuple):
    """The state of the tensors of one module.

    Attributes:
        digests: Of each when `convert`, `load_adapter` or `freeze_backbone` saw it, or when it was
            loaded into a frozen network.
        trained: Names of tensors that were left trainable, or that an adapter brought.
        frozen: Whether `freeze_backbone` froze the others.
    """

    digests: dict[str, Digest]
    trained: frozenset[str] = frozenset()
    frozen: bool = False


States = dict[nn.Module, BackboneState]


def remember_state(model: nn.Module, similarities: Collection[nn.Module]) -> None:
    """Keep the digest of every tensor outside of similarities that has none yet."""
    for module, state in take_states(model, similarities).items():
        known = _state_of(module)
        kept = {name: digest for name, digest in known.digests.items() if digest}
        set_state(module, known._replace(digests=state.digests | kept))


def take_states(model: nn.Module, similarities: Collection[nn.Module]) -> States:
    """The states of all modules outside of similarities, as they are now."""
    seen: dict[int, Digest] = {}
    return {
        module: BackboneState(_digests_of(module, seen))
        for module in modules_outside(model, similarities)
    }


def set_state(module: nn.Module, state: BackboneState) -> None:
    """Keep a state on its module."""
    setattr(module, _ATTRIBUTE, state)


def forget_states(model: nn.Module) -> None:
    """Remove what `remember_state`, `mark_trained` and `mark_frozen` keep."""
    for module in model.modules():
        vars(module).pop(_ATTRIBUTE, None)
        _unwatch_loads(module)


def mark_trained(
    model: nn.Module, similarities: Collection[nn.Module], tensors: Collection[Tensor]
) -> None:
    """Record that these tensors train, besides earlier ones."""
    ids = {id(tensor) for tensor in tensors}
    for module in modules_outside(model, similarities):
        known = _state_of(module)
        names = {name for name, tensor in own_tensors(module).items() if id(tensor) in ids}
        set_state(module, known._replace(trained=known.trained | names))


def mark_frozen(model: nn.Module, similarities: Collection[nn.Module]) -> int:
    """Record that what does not train is frozen as it is now.

    Returns how many of these tensors have changed since they were seen before.
    """
    moved = 0
    for module, fresh in take_states(model, similarities).items():
        known = _state_of(module)
        moved += sum(_has_moved(known, *item, unknown=False) for item in fresh.digests.items())
        set_state(module, known._replace(digests=fresh.digests, frozen=True))
        _unwatch_loads(module)
        module.register_load_state_dict_post_hook(_see_loaded)
    return moved


def mark_unfrozen(model: nn.Module) -> None:
    """Record that everything trains."""
    for module in model.modules():
        if _ATTRIBUTE in vars(module):
            set_state(module, _state_of(module)._replace(frozen=False))
            _unwatch_loads(module)


def is_trained(module: nn.Module, name: str) -> bool:
    """Whether a tensor of a module was left trainable, or trains although the rest is frozen."""
    state = _state_of(module)
    return name in state.trained or (state.frozen and getattr(module, name).requires_grad)


def is_frozen(module: nn.Module) -> bool:
    """Whether `freeze_backbone` froze what does not train in a module."""
    return _state_of(module).frozen


def may_have_moved(module: nn.Module, name: str) -> bool:
    """Whether a tensor that does not train differs from what was seen, or was never seen."""
    tensor = own_tensors(module).get(name)
    now = None if tensor is None else _digest_of(tensor)
    return _has_moved(_state_of(module), name, now, unknown=True)


def _has_moved(state: BackboneState, name: str, now: Digest, unknown: bool) -> bool:
    """Whether a tensor does not train and differs; `unknown` is the answer if it was never seen.

    A frozen network may be cast or sharded: then its digests do not compare.
    """
    if name in state.trained:
        return False
    known = state.digests.get(name)
    if state.frozen and name in state.digests:
        return known is not None and now is not None and known[0] == now[0] and known != now
    return unknown if known is None else known != now


def _see_loaded(module: nn.Module, _keys: Any) -> None:
    """A hook: what is loaded into a frozen module is its backbone, as in a resumed training."""
    state = _state_of(module)
    if state.frozen:
        set_state(module, state._replace(digests=_digests_of(module, {})))


def _unwatch_loads(module: nn.Module) -> None:
    hooks = module._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _see_loaded]:
        del hooks[key]


def _digests_of(module: nn.Module, seen: dict[int, Digest]) -> dict[str, Digest]:
    """The digests of a module's own tensors; those in `seen` are not computed again."""
    own = own_tensors(module)
    for tensor in own.values():
        if id(tensor) not in seen:
            seen[id(tensor)] = _digest_of(tensor)
    return {name: seen[id(tensor)] for name, tensor in own.items()}


def _digest_of(tensor: Tensor) -> Digest:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_meta or tensor.is_quantized:
        return None
    digest = hashlib.sha256()
    _hash(digest, tensor)
    return tensor.dtype, digest.digest()


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


def state_digests(state: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of the names, shapes and types of tensors, of parameters and of buffers.

    `num_batches_tracked` is left out, as nothing depends on it.
    """
    tensors = _sorted_tensors(state).values()
    parameters = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
    buffers = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
    return {
        "names": names_digest(state),
        "parameters": _digest_tensors(parameters),
        "buffers": _digest_tensors(buffers),
    }


def names_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, shapes and types of tensors."""
    names = [[key, str(t.dtype), list(t.shape)] for key, t in _sorted_tensors(state).items()]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _sorted_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: state[key] for key in sorted(state) if not key.endswith("num_batches_tracked")}


def _digest_tensors(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.is_meta:
            raise ValueError("the network must hold its weights, got some on the meta device")
        _hash(digest, tensor)
    return digest.hexdigest()


def _hash(digest: "hashlib._Hash", tensor: Tensor) -> None:
    """Add the bytes of a tensor to a digest, without a further copy."""
    whole = tensor.detach().cpu().contiguous()
    if whole.nbytes:
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))

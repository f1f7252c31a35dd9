"""Which modules of a network `where` asks for."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from torch import nn

from neural_similarity.conversion.names import is_glob, matches
from neural_similarity.nn.layer import LAYERS, torchs_class

Kinds = tuple[type[nn.Module], ...]
Choose = Callable[[str, nn.Module], bool]
Choice = list[str] | Kinds | Choose
Where = str | type[nn.Module] | Collection[str] | Kinds | Choose


def choice_of(where: Where | None) -> Choice | None:
    """`where` as names, classes or a function."""
    if where is None or (callable(where) and not isinstance(where, type | nn.Module)):
        return where
    one = isinstance(where, str | type | nn.Module) or not isinstance(where, Iterable)
    parts = [where] if one else list(cast(Iterable[Any], where))
    kinds = tuple(part for part in parts if isinstance(part, type))
    if kinds and len(kinds) == len(parts):
        return kinds
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(
            "`where` must be names of modules, classes, or a function of (name, module), "
            f"got {type(where).__name__ if isinstance(where, nn.Module) else repr(where)}"
        )
    return cast(list[str], parts)


def named(where: Choice | None) -> set[str]:
    """The names that `where` consists of, without its globs."""
    return {name for name in where if not is_glob(name)} if isinstance(where, list) else set()


def is_chosen(where: Choice | None, name: str, module: nn.Module) -> bool:
    """Whether `where` asks for a module."""
    if where is None:
        return type(module) in (nn.Conv2d, LAYERS[nn.Conv2d])
    if isinstance(where, list):
        found = any(is_glob(glob) and matches(name, glob) for glob in where)
        return name in where or (found and isinstance(module, tuple(LAYERS)))
    if isinstance(where, tuple):
        return isinstance(module, tuple(LAYERS)) and isinstance(module, where)
    return is_exact(module) and where(name, module)


def converts_class(where: Choice | None, layer: nn.Module) -> bool:
    """Whether a layer is of a class that has one of ours, or that `where` names and may be one."""
    if is_exact(layer):
        return True
    asked = isinstance(where, tuple) and type(layer) in where
    return asked and torchs_class(type(layer)) is not None


def is_exact(layer: nn.Module) -> bool:
    """Whether a layer's class is one of torch's that has one of ours, or is one of ours."""
    return type(layer) in {*LAYERS, *LAYERS.values()}

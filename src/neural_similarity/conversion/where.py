"""Names in a network without those of its wrappers; selecting parts of it by name or class."""

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from neural_similarity.nn.layer import (
    LAYER_CLASSES,
    SimilarityLayer,
    counterpart,
    unparametrized_class,
)

COMPILED = "_orig_mod"
CHECKPOINTED = "_checkpoint_wrapped_module"
_ADDED = {COMPILED, CHECKPOINTED}
_WRAPPERS = DistributedDataParallel, DataParallel, AveragedModel


def unwrap_model(model: nn.Module) -> nn.Module:
    """The network that `torch.compile`, DDP, DataParallel or AveragedModel wraps, or `model`."""
    while True:
        if COMPILED in model._modules:
            model = model.get_submodule(COMPILED)
        elif isinstance(model, _WRAPPERS):
            model = model.module
        else:
            return model


def plain_name(name: str) -> str:
    """A name without the parts that compiled and checkpointed modules add."""
    return ".".join(part for part in name.split(".") if part not in _ADDED)


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module adds a part to the names of what it holds."""
    return not _ADDED.isdisjoint(module._modules)


def plain_modules(model: nn.Module, remove_duplicate: bool = True) -> dict[str, nn.Module]:
    """The modules of a network, unwrapped, by their plain names."""
    named = unwrap_model(model).named_modules(remove_duplicate=remove_duplicate)
    return {plain_name(name): module for name, module in named}


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers in a network's state dict by their plain names."""
    state = unwrap_model(model).state_dict(keep_vars=True)
    return {plain_name(name): t for name, t in state.items() if isinstance(t, Tensor)}


Part = str | nn.Module
Parts = Part | Collection[Part]
Kinds = tuple[type[nn.Module], ...]
Choose = Callable[[str, nn.Module], bool]
Choice = list[str] | Kinds | Choose
CONV_CLASSES = nn.Conv1d, nn.Conv2d, nn.Conv3d
Where = str | type[nn.Module] | Collection[str] | Kinds | Choose


def is_glob(name: str) -> bool:
    """Whether a name has a wildcard, which no name of a module has."""
    return any(character in name for character in "*?[")


def matches_glob(name: str, pattern: str) -> bool:
    """Whether a name is `pattern`, or matches it if it is a glob such as "layer4.*"."""
    return fnmatchcase(name, pattern) if is_glob(pattern) else name == pattern


def select_tensors(
    model: nn.Module, parts: Parts, argument: str, tensor_class: type[Tensor] = Tensor
) -> dict[str, Tensor]:
    """Parameters and buffers of this class that `parts` name, or that are in modules they name.

    A part is a name or glob of modules, parameters and buffers ("fc", "layer4.*", "*.bias"), or a
    module of the network.

    Raises:
        ValueError: a part has another type, or matches nothing in the network.
    """
    state = {k: v for k, v in plain_state(model).items() if isinstance(v, tensor_class)}
    selected: dict[str, Tensor] = {}
    for part in parts if isinstance(parts, Collection) and not isinstance(parts, Part) else [parts]:
        new = {key: state[key] for key in _keys_of_part(model, part, state, argument)}
        if not new:
            names = ", ".join(name for name, _ in unwrap_model(model).named_children())
            raise ValueError(
                f"`{argument}` must name parts of the model that have parameters, got {part!r}; "
                f"the model has {names}"
            )
        selected |= new
    return selected


def _keys_of_part(model: nn.Module, part: Part, state: Iterable[str], argument: str) -> list[str]:
    if isinstance(part, nn.Module):
        places = unwrap_model(model).named_modules()
        names = [plain_name(name) for name, module in places if module is unwrap_model(part)]
        prefixes = tuple(f"{name}.".removeprefix(".") for name in names)
        return [key for key in state if key.startswith(prefixes)]
    if not isinstance(part, str):
        raise ValueError(f"`{argument}` must be names, globs or modules, got {part!r}")
    # The name "a.b.c" has "a", "a.b" and "a.b.c".
    named = {key: accumulate(key.split("."), "{}.{}".format) for key in state}
    return [key for key, names in named.items() if any(matches_glob(n, part) for n in names)]


def choice_of(where: Where | None) -> Choice | None:
    """`where` as names, classes or a function."""
    if where is None or (callable(where) and not isinstance(where, type | nn.Module)):
        return where
    is_single = isinstance(where, str | type | nn.Module) or not isinstance(where, Iterable)
    parts = [where] if is_single else list(cast(Iterable[Any], where))
    kinds = tuple(part for part in parts if isinstance(part, type))
    if kinds and len(kinds) == len(parts):
        return kinds
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(
            "`where` must be names of modules, classes, or a function of (name, module), "
            f"got {type(where).__name__ if isinstance(where, nn.Module) else repr(where)}"
        )
    return cast(list[str], parts)


def exact_names(where: Choice | None) -> set[str]:
    """The names in `where`, without its globs."""
    return {name for name in where if not is_glob(name)} if isinstance(where, list) else set()


def is_chosen(where: Choice | None, name: str, module: nn.Module) -> bool:
    """Whether `where` selects a module."""
    if where is None:
        return isinstance(module, CONV_CLASSES)
    if isinstance(where, list):
        matched = any(is_glob(glob) and matches_glob(name, glob) for glob in where)
        return name in where or (matched and isinstance(module, tuple(LAYER_CLASSES)))
    if isinstance(where, tuple):
        return isinstance(module, tuple(LAYER_CLASSES)) and isinstance(module, where)
    return is_exact(module) and where(name, module)


def converts_class(where: Choice | None, layer: nn.Module) -> bool:
    """Whether a layer's class is exact, or is named by `where` and can be converted."""
    kind = unparametrized_class(layer)
    asked = isinstance(where, tuple) and kind in where
    return is_exact(layer) or (asked and counterpart(kind) is not None)


def is_exact(layer: nn.Module) -> bool:
    """Whether a layer's class is torch's with a counterpart, our counterpart, or a user's of it.

    Of convolutions also subclasses of torch's. Parametrizations do not matter; a class that FSDP
    puts on top does.
    """
    kind = unparametrized_class(layer)
    ours = next((n for n, base in enumerate(kind.__mro__) if base in LAYER_CLASSES.values()), None)
    if ours is None:
        extends = issubclass(kind, CONV_CLASSES) and counterpart(kind) is not None
        return kind in LAYER_CLASSES or extends
    return all(issubclass(base, SimilarityLayer) for base in kind.__mro__[:ours])

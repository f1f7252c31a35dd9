"""Parts of a network by name, glob or module."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from torch import Tensor, nn

Part = str | nn.Module
Parts = Part | Collection[Part]


def is_glob(name: str) -> bool:
    """Whether a name has a character that no name of a module has."""
    return any(character in name for character in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Whether a name is `pattern`, or fits it where it is a glob, as "layer4.*"."""
    return fnmatchcase(name, pattern) if is_glob(pattern) else name == pattern


def chosen(
    model: nn.Module, parts: Parts, argument: str, kind: type[Tensor] = Tensor
) -> dict[str, Tensor]:
    """Parameters and buffers of this kind that `parts` name or that are inside of what they name.

    A part is a name or glob of modules, parameters and buffers ("fc", "layer4.*", "*.bias"), or a
    module of the network.

    Raises:
        ValueError: a part is another thing, or there is nothing of it in the network.
    """
    state = {k: v for k, v in model.state_dict(keep_vars=True).items() if isinstance(v, kind)}
    found: dict[str, Tensor] = {}
    for part in parts if isinstance(parts, Collection) and not isinstance(parts, Part) else [parts]:
        new = {key: state[key] for key in _keys(model, part, state, argument)}
        if not new:
            raise ValueError(
                f"`{argument}` must name parts of the model that have parameters, got {part!r}; "
                f"the model has {', '.join(name for name, _ in model.named_children())}"
            )
        found |= new
    return found


def _keys(model: nn.Module, part: Part, state: Iterable[str], argument: str) -> list[str]:
    if isinstance(part, nn.Module):
        names = [name for name, module in model.named_modules() if module is part]
        return [key for key in state if any(key.startswith(f"{name}.") for name in names)]
    if not isinstance(part, str):
        raise ValueError(f"`{argument}` must be names, globs or modules, got {part!r}")
    return [key for key in state if any(matches(name, part) for name in _with_owners(key))]


def _with_owners(key: str) -> list[str]:
    """The name "a.b.c" as "a", "a.b" and "a.b.c"."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]

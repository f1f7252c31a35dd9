"""Argument validation, and the version."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Real
from typing import Any

VERSION = "0.2.0"


def require_known(argument: str, name: str, names: Collection[str]) -> None:
    """Check that `name` is one of `names`; the error suggests the nearest.

    Raises:
        ValueError: it names the argument, all choices, and what came.
    """
    if not isinstance(name, str) or name not in names:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(names)}, got {name!r}; "
            f"nearest: {nearest_name(name, names)}"
        )


def require_count(argument: str, value: object) -> None:
    """Check that a value is an integer of at least 1.

    Raises:
        ValueError: it names the argument and what came.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{argument}` must be an integer of at least 1, got {value!r}")


def require_flag(argument: str, value: object) -> None:
    """Check that a value is True or False.

    Raises:
        ValueError: it names the argument and what came.
    """
    if not isinstance(value, bool):
        raise ValueError(f"`{argument}` must be True or False, got {value!r}")


def require_least(argument: str, value: float, least: float = 1) -> None:
    """Check that a number is at least `least`.

    Raises:
        ValueError: it names the argument, the least and what came.
    """
    if not (isinstance(value, Real) and value >= least):
        raise ValueError(f"`{argument}` must be at least {least}, got {value!r}")


def require_positive(argument: str, value: float) -> None:
    """Check that a number is positive.

    Raises:
        ValueError: it names the argument and what came.
    """
    if not (isinstance(value, Real) and value > 0):
        raise ValueError(f"`{argument}` must be positive, got {value!r}")


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The most similar one of `names`."""
    return get_close_matches(str(name), names, n=1, cutoff=0.0)[0]


EXTRA = ("numpy", "PIL", "tyro", "rich", "matplotlib", "scipy")
"""The modules that the extra `lab` installs."""


def extra_needed(error: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """The error for a missing module, which says what to install if it is in the extra `lab`."""
    if (error.name or "").partition(".")[0] not in EXTRA:
        return error
    return ModuleNotFoundError(
        f"{what} needs the extra `lab` ({error.name} is missing): "
        "pip install 'neural-similarity[lab]'",
        name=error.name,
    )


def import_optional(module: str, what: str, extra: str) -> Any:
    """Import a module that an extra installs; the error says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {error.name}: pip install 'neural-similarity[{extra}]'", name=error.name
        ) from None

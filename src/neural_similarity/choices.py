"""Argument validation, the version, and what `dir` shows.

Every `require_...` raises a `ValueError` that names the argument, what it must be, and what came.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from pkgutil import get_data
from types import ModuleType
from typing import Any

VERSION = "0.4.0"


def public_names(module: str) -> Callable[[], list[str]]:
    """The `__dir__` of a module: its `__all__`, or without one its names except of modules."""

    def listed_names() -> list[str]:
        members = vars(sys.modules[module])
        own = (n for n, v in members.items() if n[0] != "_" and not isinstance(v, ModuleType))
        return sorted(members.get("__all__", own))

    return listed_names


def stub_names(package: str) -> dict[str, str]:
    """The names that the stub beside a package's `__init__.py` imports, with their modules."""
    stub = get_data(package, "__init__.pyi") or b""  # It may lie in an archive.
    lines = re.findall(r"^from (\S+) import (\w+)", stub.decode(), re.MULTILINE)
    return {name: home for home, name in lines}


def require_known(argument: str, name: str, names: Collection[str]) -> None:
    """Check that `name` is one of `names`; the error suggests the nearest."""
    if not isinstance(name, str) or name not in names:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(names)}, got {name!r}; "
            f"nearest: {nearest_name(name, names)}"
        )


def require_count(argument: str, value: object) -> None:
    """Check that a value is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{argument}` must be an integer of at least 1, got {value!r}")


def require_flag(argument: str, value: object) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{argument}` must be True or False, got {value!r}")


def require_text(argument: str, value: str) -> None:
    """Check that text can be written in UTF-8; names of files can hold other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{argument}` must be valid UTF-8, got {value!r}") from error


def require_least(argument: str, value: float, least: float = 1) -> None:
    """Check that a number is at least `least`."""
    if not (isinstance(value, Real) and value >= least):
        raise ValueError(f"`{argument}` must be at least {least}, got {value!r}")


def require_positive(argument: str, value: float) -> None:
    """Check that a number is positive."""
    if not (isinstance(value, Real) and value > 0):
        raise ValueError(f"`{argument}` must be positive, got {value!r}")


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The most similar one of `names`."""
    return get_close_matches(str(name), names, n=1, cutoff=0.0)[0]


EXTRA = ("numpy", "PIL", "torchvision", "tyro", "rich", "matplotlib", "scipy")
"""The modules that the extra `lab` installs."""
INSTALL = "pip install"


def extra_needed(error: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """The error for a missing module, which says what to install if it is in the extra `lab`."""
    if (error.name or "").partition(".")[0] not in EXTRA or INSTALL in str(error):
        return error
    return missing_module(error, f"{what} needs the extra `lab` ({error.name} is missing)", "lab")


def import_optional(module: str, what: str, extra: str) -> Any:
    """Import a module that an extra installs; the error says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing_module(error, f"{what} needs {error.name}", extra) from None


def require_installed(module: str, what: str, extra: str) -> None:
    """Check that a module which an extra installs is there, without the time of importing it."""
    if (sys.modules[module] if module in sys.modules else find_spec(module)) is None:
        error = ModuleNotFoundError(name=module)
        raise missing_module(error, f"{what} needs {module}", extra)


def missing_module(error: ModuleNotFoundError, reason: str, extra: str) -> ModuleNotFoundError:
    """The error for a missing module, with the command that installs the extra."""
    return ModuleNotFoundError(f"{reason}: {install_command(extra)}", name=error.name)


def install_command(extra: str) -> str:
    """The command that installs an extra, from where the package came.

    Installers note where that was (https://packaging.python.org/specifications/direct-url/); of
    what came from an index they note nothing. A clone that is only on the path is installed.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        noted = distribution("neural-similarity").read_text("direct_url.json")
        origin = json.loads(noted or "{}")
    except PackageNotFoundError:
        origin = {"url": Path(__file__).parents[2].as_uri(), "dir_info": {"editable": True}}
    except ValueError:
        origin = {}
    url, name = origin.get("url"), f"neural-similarity[{extra}]"
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{url2pathname(urlsplit(str(url)).path)}[{extra}]'"
    if url and "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    return f"pip install '{name} @ {url}'" if url else f"pip install '{name}'"


def when_imported(module: str, action: Callable[[ModuleType], object]) -> None:
    """Call `action` with a module that is slow to import: now, or once something imports it."""
    if module in sys.modules:
        action(sys.modules[module])
    else:
        sys.meta_path.insert(0, _AtImport(module, action))


class _AtImport(MetaPathFinder):
    def __init__(self, module: str, action: Callable[[ModuleType], object]):
        self._module, self._action = module, action

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = execute_and_act
        return spec

"""M as one of PEFT's tuners, and its adapters to and from the files of `ns.save_adapter`.

Importing this does not import PEFT, which takes seconds: what PEFT needs to know the tuner is
registered once something imports PEFT. Names are imported when they are first used.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import Any as _Any

from neural_similarity.choices import require_installed as _require_installed
from neural_similarity.choices import stub_names as _stub_names
from neural_similarity.choices import when_imported as _when_imported

_HOMES = _stub_names(__name__)
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
_require_installed("peft", "ns.peft", "peft")


def _register_tuner() -> None:
    """Import the tuner, which registers itself, unless a part of it is what imports PEFT."""
    if f"{__name__}.config" not in _sys.modules:
        _import_module(f"{__name__}.tuner")


_when_imported("peft", lambda _: _register_tuner())


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _import_module(f"{__name__}.tuner")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

r"""Neural Similarity Learning: convolution with a learned bilinear similarity, $W^\top M X$.

Names are imported when they are first used, so that `nsim --help` loads no torch.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from neural_similarity.choices import VERSION as _VERSION
from neural_similarity.choices import extra_needed as _extra_needed
from neural_similarity.choices import stub_names as _stub_names

__version__ = _VERSION
_HOMES = _stub_names(__name__)
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] == __name__:
        return _import_module(f"{__name__}.{name}")
    try:
        value = getattr(_import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise _extra_needed(error, f"ns.{name}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

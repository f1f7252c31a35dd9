r"""Neural Similarity Learning: convolution with a learned bilinear similarity, $W^\top M X$.

Names are imported when they are first used, so that `nsim --help` loads no torch.
"""

import typing as _typing
from importlib import import_module as _import_module

from neural_similarity.choices import VERSION as _VERSION
from neural_similarity.choices import extra_needed as _extra_needed

if _typing.TYPE_CHECKING:
    from neural_similarity import functional as functional
    from neural_similarity import hub as hub
    from neural_similarity import models as models
    from neural_similarity import peft as peft
    from neural_similarity import testing as testing
    from neural_similarity import visualize as visualize
    from neural_similarity.conversion import adapters as adapters
    from neural_similarity.conversion import convert as convert
    from neural_similarity.conversion import fold as fold
    from neural_similarity.conversion import freeze_backbone as freeze_backbone
    from neural_similarity.conversion import load_adapter as load_adapter
    from neural_similarity.conversion import max_difference as max_difference
    from neural_similarity.conversion import plan as plan
    from neural_similarity.conversion import save_adapter as save_adapter
    from neural_similarity.conversion import unconvert as unconvert
    from neural_similarity.conversion import unfreeze_backbone as unfreeze_backbone
    from neural_similarity.lab.session import load as load
    from neural_similarity.models import macs as macs
    from neural_similarity.nn import CNN as CNN
    from neural_similarity.nn import LSTM as LSTM
    from neural_similarity.nn import SIMILARITIES as SIMILARITIES
    from neural_similarity.nn import Affine as Affine
    from neural_similarity.nn import Conv1d as Conv1d
    from neural_similarity.nn import Conv2d as Conv2d
    from neural_similarity.nn import Conv3d as Conv3d
    from neural_similarity.nn import ConvTranspose2d as ConvTranspose2d
    from neural_similarity.nn import Diagonal as Diagonal
    from neural_similarity.nn import Dilation as Dilation
    from neural_similarity.nn import Dynamic as Dynamic
    from neural_similarity.nn import Full as Full
    from neural_similarity.nn import GlobalSimilarity as GlobalSimilarity
    from neural_similarity.nn import Light as Light
    from neural_similarity.nn import Linear as Linear
    from neural_similarity.nn import LowRank as LowRank
    from neural_similarity.nn import Masked as Masked
    from neural_similarity.nn import Pooled as Pooled
    from neural_similarity.nn import PositiveSemidefinite as PositiveSemidefinite
    from neural_similarity.nn import Select as Select
    from neural_similarity.nn import SelfAttention as SelfAttention
    from neural_similarity.nn import Shared as Shared
    from neural_similarity.nn import Shift as Shift
    from neural_similarity.nn import Sparse as Sparse
    from neural_similarity.nn import SphereConv2d as SphereConv2d
    from neural_similarity.nn import SphereLinear as SphereLinear
    from neural_similarity.nn import SphereNet as SphereNet
    from neural_similarity.nn import Static as Static
    from neural_similarity.nn import Symmetric as Symmetric
    from neural_similarity.nn import Unshared as Unshared
    from neural_similarity.nn import Unstructured as Unstructured
    from neural_similarity.nn import orthogonality as orthogonality
    from neural_similarity.nn import sharing as sharing
    from neural_similarity.regularize import parameter_groups as parameter_groups
    from neural_similarity.regularize import penalty as penalty

__version__ = _VERSION
_MODULES = ("functional", "hub", "models", "nn", "peft", "testing", "visualize")
_HOMES = {
    "conversion": """
        adapters convert fold freeze_backbone load_adapter max_difference plan save_adapter
        unconvert unfreeze_backbone
    """,
    "models": "macs",
    "nn": """
        CNN LSTM SIMILARITIES Affine Conv1d Conv2d Conv3d ConvTranspose2d Diagonal Dilation Dynamic
        Full GlobalSimilarity Light Linear LowRank Masked Pooled PositiveSemidefinite Select
        SelfAttention Shared Shift Sparse SphereConv2d SphereLinear SphereNet Static Symmetric
        Unshared Unstructured orthogonality sharing
    """,
    "regularize": "parameter_groups penalty",
    "lab.session": "load",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*_MODULES, *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(_import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        raise _extra_needed(error, f"ns.{name}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

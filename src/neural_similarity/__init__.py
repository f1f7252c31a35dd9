r"""Neural Similarity Learning: convolution with a learned bilinear similarity, $W^\top M X$."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neural_similarity import functional as functional
from neural_similarity import models as models
from neural_similarity.conversion import convert as convert
from neural_similarity.conversion import fold as fold
from neural_similarity.conversion import freeze_backbone as freeze_backbone
from neural_similarity.conversion import max_difference as max_difference
from neural_similarity.conversion import plan as plan
from neural_similarity.conversion import unconvert as unconvert
from neural_similarity.conversion import unfreeze_backbone as unfreeze_backbone
from neural_similarity.nn import CNN as CNN
from neural_similarity.nn import LSTM as LSTM
from neural_similarity.nn import SIMILARITIES as SIMILARITIES
from neural_similarity.nn import Conv1d as Conv1d
from neural_similarity.nn import Conv2d as Conv2d
from neural_similarity.nn import Conv3d as Conv3d
from neural_similarity.nn import ConvTranspose2d as ConvTranspose2d
from neural_similarity.nn import Diagonal as Diagonal
from neural_similarity.nn import Dilation as Dilation
from neural_similarity.nn import Dynamic as Dynamic
from neural_similarity.nn import Full as Full
from neural_similarity.nn import GlobalSimilarity as GlobalSimilarity
from neural_similarity.nn import Linear as Linear
from neural_similarity.nn import Masked as Masked
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

if TYPE_CHECKING:
    from neural_similarity import testing as testing
    from neural_similarity import visualize as visualize
    from neural_similarity.lab.train.run import load as load

_LAZY = {
    "testing": "neural_similarity.testing",
    "visualize": "neural_similarity.visualize",
}
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Rooms that need more than torch are imported when they are first used."""
    if name == "load":
        return import_module("neural_similarity.lab.train.run").load
    if name in _LAZY:
        return import_module(_LAZY[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "load"})

"""M as one of PEFT's tuners, and its adapters to and from the files of `ns.save_adapter`."""

from neural_similarity.choices import missing_module as _missing_module
from neural_similarity.choices import public_names as _public_names

try:
    import peft as _peft  # noqa: F401
except ModuleNotFoundError as error:
    raise _missing_module(error, f"ns.peft needs {error.name}", "peft") from None

from neural_similarity.peft.config import NslConfig as NslConfig
from neural_similarity.peft.files import export_adapter as export_adapter
from neural_similarity.peft.files import import_adapter as import_adapter
from neural_similarity.peft.layer import NslLayer as NslLayer
from neural_similarity.peft.tuner import NslModel as NslModel

__dir__ = _public_names(__name__)

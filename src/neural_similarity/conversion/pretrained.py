"""Converted networks with a `save_pretrained`, such as those of transformers and diffusers.

Their `from_pretrained` builds the plain network and drops the tensors of M, which it does not know;
a strict one, such as that of segmentation_models_pytorch, refuses them.
Refusing to save would end a Trainer's run at its first checkpoint, or lose the network at its end.
So `save_pretrained` writes the same files as before, and beside them an adapter that `load_adapter`
puts on the network that `from_pretrained` returns. A Trainer resumes from its checkpoints as it
did, since it reads them into its own network.
"""

import logging
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from neural_similarity.conversion.adapter_saving import learned_state, write_adapter
from neural_similarity.files import remove_file

ADAPTER = "adapter.safetensors"
_METHOD = "save_pretrained"
log = logging.getLogger(__name__)


def save_both(model: nn.Module) -> None:
    """Let `save_pretrained` of a network and of its parts write an adapter, too."""
    for module in model.modules():
        if callable(getattr(type(module), _METHOD, None)):
            setattr(module, _METHOD, partial(_save_pretrained, module))


def restore_saving(model: nn.Module) -> None:
    """Undo `save_both`."""
    for module in model.modules():
        vars(module).pop(_METHOD, None)


def _save_pretrained(
    model: Any, save_directory: str | PathLike[str], *args: Any, **options: Any
) -> Any:
    result = type(model).save_pretrained(model, save_directory, *args, **options)
    writes = args[0] if args else options.get("is_main_process", True)
    if (kept := learned_state(model)) and writes:
        file = Path(save_directory, ADAPTER)
        try:
            write_adapter(model, file, kept)
        except ValueError as error:  # The weights are written: better no adapter than no run.
            remove_file(file)  # An earlier one would put an older M on these weights.
            log.warning("%s has M in its weights alone: %s", save_directory, error)
        else:
            log.warning(
                "from_pretrained(%r) drops M, or refuses its tensors unless strict=False; "
                "ns.load_adapter(of that, %r) puts it back. ns.fold before saving needs neither",
                str(save_directory), str(file),
            )  # fmt: skip
    return result

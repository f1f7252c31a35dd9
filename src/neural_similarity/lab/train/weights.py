"""The weights of a network as one file of safetensors."""

import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from neural_similarity.files import new_file, regular_file
from neural_similarity.lab.errors import RunError


def save_weights(path: Path, model: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write a network's parameters and buffers into a file, see `packed_weights`."""
    content = packed_weights(model, metadata)
    with new_file(path) as file:
        file.write(content)


def packed_weights(model: nn.Module, metadata: Mapping[str, str]) -> bytes:
    """A network's parameters and buffers as safetensors; shared tensors are stored once.

    safetensors' own `save_model` writes such files too, but fails on a shared tensor in
    channels-last memory. The header holds `metadata` and maps the other names of shared tensors to
    the written one.
    """
    written = _kept_names(model)
    tensors = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if written[name] == name
    }
    others = {name: first for name, first in written.items() if first != name}
    return save(tensors, metadata=others | dict(metadata))


def load_weights(path: Path, model: nn.Module) -> None:
    """Load a file that `save_weights` wrote into `model`, on any device.

    Raises:
        RunError: the file holds no weights, or their names or shapes differ from the model's.
    """
    try:
        stored = load_file(regular_file(path))
    except SafetensorError as error:
        raise RunError(f"{path} holds no weights: {error}") from error
    shared = {name: stored[first] for name, first in _kept_names(model).items() if first in stored}
    try:
        model.load_state_dict(stored | shared)
    except RuntimeError as error:
        _, *lines = str(error).splitlines()
        first = lines[0].strip() if lines else error
        raise RunError(f"{path} holds the weights of another network: {first}") from error


@contextmanager
def tensors_alone() -> Iterator[None]:
    """Say how to save weights where `torch.load` would advise to execute what a file holds."""
    try:
        yield
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        what = f"an object of {match[1]}" if match else "something else"
        raise ValueError(
            f"it must hold tensors alone, got {what}; save its state_dict(), with safetensors or "
            "torch.save"
        ) from error


def _kept_names(model: nn.Module) -> dict[str, str]:
    """For every name, the alphabetically first name of the same tensor."""
    tensors = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    for name in sorted(tensors):
        first.setdefault(id(tensors[name]), name)
    return {name: first[id(tensor)] for name, tensor in tensors.items()}

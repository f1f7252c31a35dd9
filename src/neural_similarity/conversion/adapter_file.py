"""The file format of adapters: tensors, specs of their similarities, digests of the backbone."""

import ctypes
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import TensorSpec, safe_open, serialize
from torch import Tensor, nn

from neural_similarity.choices import VERSION
from neural_similarity.files import new_file, regular_file

FORMAT = "neural-similarity adapter 1"


@dataclass(frozen=True)
class AdapterFile:
    """The content of a file.

    Attributes:
        texts: The complete text of every layer's similarity, by the layer's name.
        tensors: By their names in the network; shared tensors are one object.
        backbone: Digests of all else in the network, see `state_digests`.
    """

    texts: dict[str, str]
    tensors: dict[str, Tensor]
    backbone: dict[str, str]

    def without_prefix(self, prefix: str) -> "AdapterFile":
        """The content with names that lack their common prefix."""
        texts = {name.removeprefix(prefix): text for name, text in self.texts.items()}
        tensors = {name.removeprefix(prefix): t for name, t in self.tensors.items()}
        return AdapterFile(texts, tensors, self.backbone)


def write_adapter_file(path: Path, content: AdapterFile) -> int:
    """Write a file atomically, and return its size in bytes."""
    first: dict[int, str] = {}
    names = {key: first.setdefault(id(tensor), key) for key, tensor in content.tensors.items()}
    tensors = {
        n: t.detach().cpu().contiguous() for n, t in content.tensors.items() if names[n] == n
    }
    facts = {
        "format": FORMAT,
        "neural_similarity": VERSION,
        "torch": torch.__version__,
        "similarities": _layers_by_text(content.texts),
        "same": {key: name for key, name in names.items() if key != name},
        "backbone": content.backbone,
    }
    # As safetensors.torch does it, but without numpy, which the library does not require.
    specs = {
        name: TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape),
            data_ptr=tensor.data_ptr(), data_len=tensor.nbytes,
        )
        for name, tensor in tensors.items()
    }  # fmt: skip
    with new_file(path) as file:
        return file.write(serialize(specs, {"adapter": json.dumps(facts)}))


def _layers_by_text(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of layers by their text, so that every text is written once."""
    layers: dict[str, list[str]] = {}
    for name, text in texts.items():
        layers.setdefault(text, []).append(name)
    return layers


def read_adapter_file(path: Path) -> AdapterFile:
    """The content that `write_adapter_file` wrote.

    Raises:
        Exception: of any type, if the file is not such a file.
    """
    with safe_open(regular_file(path), "pt") as file:
        facts = json.loads((file.metadata() or {}).get("adapter", "{}"))
        # Copies are aligned as torch allocates: elsewhere, vector code may round differently.
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}
    if facts.get("format") != FORMAT:
        raise ValueError(f"its format must be {FORMAT!r}, got {facts.get('format')!r}")
    texts = {name: text for text, names in facts["similarities"].items() for name in names}
    tensors |= {key: tensors[name] for key, name in facts["same"].items()}
    return AdapterFile(texts, tensors, facts["backbone"])


def state_digests(state: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of the names, shapes and types of tensors, of parameters and of buffers.

    `num_batches_tracked` is left out, as nothing depends on it.
    """
    tensors = _digested(state).values()
    parameters = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
    buffers = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
    return {
        "names": names_digest(state),
        "parameters": _digest_tensors(parameters),
        "buffers": _digest_tensors(buffers),
    }


def names_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, shapes and types of tensors."""
    names = [[key, str(t.dtype), list(t.shape)] for key, t in _digested(state).items()]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _digested(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: state[key] for key in sorted(state) if not key.endswith("num_batches_tracked")}


def _digest_tensors(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.is_meta:
            raise ValueError("the network must hold its weights, got some on the meta device")
        _hash(digest, tensor)
    return digest.hexdigest()


def tensor_digest(tensor: Tensor) -> bytes | None:
    """SHA-256 of the bytes of a tensor, None if this process does not hold them."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_meta or tensor.is_quantized:
        return None
    digest = hashlib.sha256()
    _hash(digest, tensor)
    return digest.digest()


def _hash(digest: "hashlib._Hash", tensor: Tensor) -> None:
    """Add the bytes of a tensor to a digest, without a further copy."""
    whole = tensor.detach().cpu().contiguous()
    if whole.nbytes:
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))

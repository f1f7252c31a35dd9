"""The file format of adapters, and reading one for a backbone."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import TensorSpec, safe_open, serialize
from torch import Tensor, nn

from neural_similarity.choices import VERSION
from neural_similarity.conversion.backbone_state import names_digest, state_digests
from neural_similarity.conversion.where import plain_modules, plain_state
from neural_similarity.files import new_file, regular_file
from neural_similarity.nn.layer import build_for
from neural_similarity.nn.modes import first_parameter
from neural_similarity.nn.text import required_similarity


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise a `ValueError` where a number is NaN or infinite."""
    numbers = tensor.detach()
    if numbers.dtype.itemsize == 1 and numbers.is_floating_point():
        numbers = numbers.float()  # torch.isfinite has no 8-bit types.
    if not numbers.isfinite().all():
        raise ValueError(f"{name} must hold finite numbers, got NaN or infinite ones")


def exact_cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating-point tensor in another floating-point type that holds its values exactly.

    Raises:
        ValueError: one of the types is not floating-point, or digits would be lost.
    """
    if tensor.dtype == dtype:
        return tensor
    if tensor.is_floating_point() and dtype.is_floating_point:
        cast = tensor.to(dtype)
        if torch.equal(cast.double(), tensor.double()):
            return cast
    raise ValueError(
        f"{name} must be {dtype} as its place in the network, or exact in it, got {tensor.dtype}"
    )


FORMAT = "neural-similarity adapter 1"
_MOST_WORDS = 500
"""Characters of a reason that an error shows."""


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
    layers: dict[str, list[str]] = {}  # by their text, so that every text is written once
    for name, text in content.texts.items():
        layers.setdefault(text, []).append(name)
    facts = {
        "format": FORMAT,
        "neural_similarity": VERSION,
        "torch": torch.__version__,
        "similarities": layers,
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


def without_keys(state: Mapping[str, Tensor], keys: Iterable[str]) -> dict[str, Tensor]:
    """A state without some of its tensors, under any of their names."""
    gone = {id(state[key]) for key in keys if key in state}
    return {key: tensor for key, tensor in state.items() if id(tensor) not in gone}


def build_on_meta(layer: nn.Module, text: str) -> nn.Module:
    """A layer's similarity on the meta device, so that no file can make it allocate memory."""
    with torch.device("meta"):
        return build_for(layer, required_similarity(text))


class Adapter(NamedTuple):
    """Similarities by the names of their layers, and the tensors that replace the backbone's."""

    similarities: dict[str, nn.Module]
    values: dict[str, Tensor]

    def modules(self) -> Iterator[nn.Module]:
        for similarity in self.similarities.values():
            yield from similarity.modules()

    def tensors(self) -> list[Tensor]:
        """What the adapter holds; shared tensors once."""
        states = [part.state_dict(keep_vars=True) for part in self.similarities.values()]
        every = [t for state in (*states, self.values) for t in state.values()]
        return list({id(tensor): tensor for tensor in every}.values())


def adapter_of(backbone: nn.Module, path: Path) -> Adapter:
    """The adapter in a file, built for this backbone."""
    with _errors_of_file(path):
        state, layers = plain_state(backbone), plain_modules(backbone, remove_duplicate=False)
        content = _of_backbone(read_adapter_file(path), state)
        for key, tensor in content.tensors.items():
            check_finite(key, tensor)
        left, loaded = dict(content.tensors), _Loaded()
        similarities: dict[str, nn.Module] = {}
        for name, text in content.texts.items():
            if name not in layers:
                raise ValueError(f"the network has no layer {name!r}")
            similarities[name] = _similarity(name, layers[name], text, left, loaded)
        return Adapter(similarities, _replacing_tensors(state, left, loaded, _heads(layers, left)))


def _of_backbone(content: AdapterFile, state: Mapping[str, Tensor]) -> AdapterFile:
    """The content of a file, after a check that its digests are those of the backbone's state.

    Its names may have a prefix: a module with no other part, such as Lightning's, was saved, or by
    version 0.2 a network inside of `torch.compile` or DDP.
    """
    prefixes, need = _common_prefixes(content.tensors), content.backbone
    every = ("", *prefixes)
    fits = (p for p in every if names_digest(_renamed_rest(content, state, p)) == need["names"])
    prefix = next(fits, "")
    hint = ""
    if prefixes and not any(key.startswith(prefixes[0]) for key in state):
        hint = f"; those in the file begin with {prefixes[0]!r}: save that part of the module alone"
    _check_backbone(state_digests(_renamed_rest(content, state, prefix)), need, hint)
    return content.without_prefix(prefix)


def _common_prefixes(names: Iterable[str]) -> list[str]:
    """What all names begin with, up to each of their dots."""
    prefixes = [""]
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        prefixes.append(f"{prefixes[-1]}{parts[0]}.")
    return prefixes[1:]


def _renamed_rest(
    content: AdapterFile, state: Mapping[str, Tensor], prefix: str
) -> dict[str, Tensor]:
    """What the file leaves to the backbone, under the names that a prefix makes."""
    rest = without_keys(state, content.without_prefix(prefix).tensors)
    return {f"{prefix}{key}": tensor for key, tensor in rest.items()}


def _similarity(
    name: str, layer: nn.Module, text: str, left: dict[str, Tensor], loaded: "_Loaded"
) -> nn.Module:
    """The similarity of one layer, whose tensors are taken out of `left`."""
    similarity, prefix = build_on_meta(layer, text), f"{name}.similarity.".removeprefix(".")
    dtype = first_parameter(layer).dtype
    expected = similarity.state_dict()
    learned = {key for key, _ in similarity.named_parameters(remove_duplicate=False)}
    tensors: dict[str, Tensor] = {}
    for key in [key for key in left if key.startswith(prefix)]:
        inner, tensor = key.removeprefix(prefix), left.pop(key)
        if inner in expected:
            kind = expected[inner].dtype
            tensor = loaded.cast(key, tensor, dtype if kind.is_floating_point else kind)
        tensors[inner] = loaded.parameter(tensor) if inner in learned else tensor
    for key in sorted(tensors.keys() | expected.keys()):
        need, have = (tuple(s[key].shape) if key in s else None for s in (expected, tensors))
        if need != have:
            raise ValueError(f"{prefix}{key} must have the shape {need}, got {have}")
    similarity.load_state_dict(tensors, assign=True)
    return similarity


class _Loaded:
    """One tensor and one parameter for each tensor of a file, even if several layers share it."""

    def __init__(self) -> None:
        self._casts: dict[tuple[int, torch.dtype], Tensor] = {}
        self._parameters: dict[int, nn.Parameter] = {}

    def cast(self, key: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        at = id(tensor), dtype
        if at not in self._casts:
            self._casts[at] = exact_cast(key, tensor, dtype)
        return self._casts[at]

    def parameter(self, tensor: Tensor) -> nn.Parameter:
        return self._parameters.setdefault(id(tensor), nn.Parameter(tensor))


def _heads(layers: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> set[str]:
    """The tensors of linear layers that a file holds whole: their number of outputs is its own."""
    heads: set[str] = set()
    for name, layer in layers.items():
        if type(layer) is nn.Linear:
            keys = {f"{name}.{key}".removeprefix(".") for key in layer.state_dict()}
            if keys <= tensors.keys() and len({tensors[key].shape[:1] for key in keys}) == 1:
                heads |= keys
    return heads


def _replacing_tensors(
    state: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    loaded: _Loaded,
    heads: Collection[str],
) -> dict[str, Tensor]:
    """The tensors that replace parameters and buffers of the backbone."""
    values: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        present, first = state.get(key), int(key in heads)
        same = present is not None and present.dim() == tensor.dim()
        if present is None or not same or present.shape[first:] != tensor.shape[first:]:
            raise ValueError(
                f"{key} must be {tuple(tensor.shape)} in the backbone, got "
                f"{None if present is None else tuple(present.shape)}; give it the same head"
            )
        value = loaded.cast(key, tensor, present.dtype)
        values[key] = loaded.parameter(value) if isinstance(present, nn.Parameter) else value
    return values


@contextmanager
def _errors_of_file(path: Path) -> Iterator[None]:
    """Turn every error that a file causes into one that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = str(error)  # It may come from the file.
        reason = reason if len(reason) <= _MOST_WORDS else f"{reason[:_MOST_WORDS]}..."
        message = f"{path} is not an adapter of this network: {kind}{reason}"
        raise ValueError("".join(c if c.isprintable() else "?" for c in message)) from error


def _check_backbone(have: Mapping[str, str], need: Mapping[str, str], hint: str) -> None:
    """Raise a `ValueError` if digests differ."""
    reasons = {
        "names": f"its parameters and buffers have other names, shapes or types{hint}",
        "parameters": "its weights differ",
        "buffers": "its weights are the same, but its buffers differ; running statistics that "
        'training changed are saved by extra="*running*"',
    }
    for name, reason in reasons.items():
        if have[name] != need[name]:
            raise ValueError(f"it belongs to another backbone: {reason}")

"""Adapters, what a network learned on top of a backbone: saved, loaded, and switched."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from neural_similarity.choices import require_flag
from neural_similarity.conversion.adapter_file import AdapterFile, digests, read, write
from neural_similarity.conversion.freezing import Network, similarities_of
from neural_similarity.conversion.surgery import copied
from neural_similarity.conversion.where import Parts, chosen
from neural_similarity.nn import DynamicSimilarity, Similarity, SimilarityLayer, format_similarity
from neural_similarity.nn.layer import become, has_similarity
from neural_similarity.nn.modes import check_module
from neural_similarity.nn.text import required_similarity

File = str | Path
log = logging.getLogger(__name__)


def save_adapter(model: nn.Module, path: File, extra: Parts = ()) -> Path:
    """Write the similarities of a converted network, and what `extra` names, into one file.

    A safetensors file: the state of the similarities, with predictors and their statistics, the
    complete text of each, and digests of all else, the backbone, which is not written. Logs how
    large the file is (INFO): kilobytes, where M is static.

    Args:
        model: A converted network, see `convert`.
        path: Of the file; its folder is made.
        extra: What else was trained or estimated: names or globs of modules, parameters and
            buffers, or modules ("fc", "*.bn?", "*running*").

    Raises:
        ValueError: the network has no similarity and `extra` is empty, or it has one that is not
            made of the library's own parts alone (the message has the layer's name), or `extra`
            names what is not there.
    """
    check_module(model)
    similarities = similarities_of(model)
    if not similarities and not extra:
        raise ValueError("`model` must have similarities to save, got a network without any")
    layers = {name: module for name, module in model.named_modules() if has_similarity(module)}
    texts = {name: _text(name, cast(SimilarityLayer, layer)) for name, layer in layers.items()}
    state = model.state_dict(keep_vars=True)
    own = tuple(f"{name}." for name, module in model.named_modules() if module in similarities)
    extras = chosen(model, extra, "extra")
    kept = {key: t for key, t in state.items() if key.startswith(own) or key in extras}
    size = write(Path(path), AdapterFile(texts, kept, digests(_without(state, kept))))
    count = sum(tensor.numel() for tensor in {id(t): t for t in kept.values()}.values())
    log.info("%s: %.1f kB, %s numbers", path, size / 1000, f"{count:,}")
    return Path(path)


def _without(state: Mapping[str, Tensor], keys: Iterable[str]) -> dict[str, Tensor]:
    """A state without some of its tensors, whatever they are called."""
    gone = {id(state[key]) for key in keys if key in state}
    return {key: tensor for key, tensor in state.items() if id(tensor) not in gone}


def _text(name: str, layer: SimilarityLayer) -> str:
    """The complete text of a layer's similarity; one built from it has the same state."""
    try:
        text = format_similarity(_spec(layer), complete=True)
        keys = [list(part.state_dict()) for part in (_built(layer, text), layer.similarity) if part]
        if keys[0] != keys[1]:
            raise ValueError(
                f"`similarity` must have {keys[0]} to be stored, got {keys[1]}; remove "
                "parametrizations and pruning first"
            )
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error
    return text


def _spec(layer: SimilarityLayer) -> Similarity:
    part = next(iter(layer.similarities().values()))
    spec = getattr(part, "spec", None)
    if spec is None:
        raise ValueError(f"`similarity` must come from a spec to be stored, got {part}")
    return spec


def _built(layer: nn.Module, text: str) -> nn.Module:
    """A layer's similarity on the meta device, so that no file can ask for much memory."""
    kind = type(layer)
    try:
        with torch.device("meta"):
            return cast(nn.Module, become(layer).build_similarity(required_similarity(text)))
    finally:
        layer.__class__ = kind


def load_adapter(backbone: Network, path: File, inplace: bool = False) -> Network:
    """The network that `save_adapter` wrote, on its backbone, equal to the last bit.

    Args:
        backbone: The network without similarities, with the same weights; what the file holds
            besides, as a head, has to have the same shape there, of any values.
        path: Of the file. It may come from anyone: nothing in it is executed.
        inplace: Adapt `backbone` itself, not a copy.

    Raises:
        ValueError: `backbone` has similarities, or is another one than that of the file, or the
            file was not written by `save_adapter`. All but the first name the file.
        FileNotFoundError: there is no such file.
    """
    check_module(backbone, "backbone")
    require_flag("inplace", inplace)
    switch = adapters(backbone if inplace else copied(backbone), adapter=path)
    return cast(Network, switch.use("adapter").backbone)


def adapters(backbone: nn.Module, **files: File) -> "Adapters":
    """Several adapters on one backbone by their names, none in use yet; see `Adapters`.

    Raises:
        ValueError, FileNotFoundError: as `load_adapter`.
    """
    switch = Adapters(backbone)
    for name, file in files.items():
        switch.add(name, file)
    return switch


class Adapters:
    """Switches a backbone, in place, between adapters and none, merged or not.

    Layers and parameters of the backbone stay the objects that they are: without an adapter it
    computes what it did before, to the last bit.

    Args:
        backbone: A network without similarities.

    Raises:
        ValueError: it has some.
    """

    def __init__(self, backbone: nn.Module):
        check_module(backbone, "backbone")
        if any(has_similarity(module) for module in backbone.modules()):
            raise ValueError(
                "`backbone` must have no similarities, got some; ns.unconvert makes it plain"
            )
        self.backbone = backbone
        self.active: str | None = None
        self.merged = False
        self._adapters: dict[str, _Adapter] = {}
        self._kinds = {name: type(module) for name, module in backbone.named_modules()}
        self._replaced: dict[str, Tensor] = {}

    def add(self, name: str, file: File) -> Self:
        """Read one more adapter. Raises as `load_adapter`."""
        active, merged = self.active, self.merged
        self.use(None)
        try:
            self._adapters[name] = _adapter(self.backbone, Path(file))
        finally:
            self.use(active, merged)
        return self

    def use(self, name: str | None, merged: bool = False) -> Self:
        """Switch to an adapter; None switches back to the plain backbone.

        Args:
            name: Of the adapter.
            merged: Fold M into the kernels: the layers are plain until the next `use`.

        Raises:
            ValueError: no adapter has that name, or a similarity to merge is dynamic.
        """
        if name is not None and name not in self._adapters:
            raise ValueError(f"`name` must be one of {', '.join(self._adapters)}, got {name!r}")
        adapter = _Adapter({}, {}) if name is None else self._adapters[name]
        if merged and any(isinstance(m, DynamicSimilarity) for m in adapter.modules()):
            raise ValueError(f"`merged` must be False for {name!r}, whose similarities are dynamic")
        self._take_off()
        for layer_name, similarity in adapter.similarities.items():
            layer = self.backbone.get_submodule(layer_name)
            self._put_on(layer_name, layer, similarity, merged)
        for key, value in adapter.values.items():
            self._replaced[key] = _replace(self.backbone, key, value)
        self.active, self.merged = name, merged
        return self

    def _put_on(self, name: str, layer: nn.Module, similarity: nn.Module, merged: bool) -> None:
        device = next(layer.parameters()).device
        ours = become(layer)
        ours.similarity = similarity.to(device).train(layer.training)
        if merged:
            kernels = {kernel: getattr(layer, kernel) for kernel in ours.similarities()}
            self._replaced |= {f"{name}.{kernel}": value for kernel, value in kernels.items()}
            SimilarityLayer.fold(ours)

    def _take_off(self) -> None:
        on = self._adapters[self.active].similarities if self.active else {}
        for name in on:
            layer, kind = become(self.backbone.get_submodule(name)), self._kinds[name]
            layer.similarity = None
            if not issubclass(kind, SimilarityLayer):
                layer.without_similarity()
            cast(nn.Module, layer).__class__ = kind
        for key, tensor in self._replaced.items():
            _replace(self.backbone, key, tensor)
        self.active, self.merged, self._replaced = None, False, {}


class _Adapter(NamedTuple):
    """Similarities by the names of their layers, and what else stands in the backbone's place."""

    similarities: dict[str, nn.Module]
    values: dict[str, Tensor]

    def modules(self) -> Iterator[nn.Module]:
        for similarity in self.similarities.values():
            yield from similarity.modules()


def _replace(model: nn.Module, key: str, tensor: Tensor) -> Tensor:
    """Replace a parameter or buffer by a tensor on its device, and return the old one."""
    owner, _, name = key.rpartition(".")
    module = model.get_submodule(owner)
    before = getattr(module, name)
    tensor.data = tensor.data.to(before.device)
    setattr(module, name, tensor)
    return before


def _adapter(backbone: nn.Module, path: Path) -> _Adapter:
    """An adapter as it is in a file, for this backbone."""
    with _naming(path):
        content = read(path)
        state = backbone.state_dict(keep_vars=True)
        _check_backbone(digests(_without(state, content.tensors)), content.backbone)
        left, made = dict(content.tensors), _Parameters()
        similarities: dict[str, nn.Module] = {}
        for name, text in content.texts.items():
            similarity = similarities[name] = _built(backbone.get_submodule(name), text)
            prefix = f"{name}.similarity."
            own = {k.removeprefix(prefix): left.pop(k) for k in list(left) if k.startswith(prefix)}
            learned = {key for key, _ in similarity.named_parameters(remove_duplicate=False)}
            loaded = {key: made.of(t) if key in learned else t for key, t in own.items()}
            similarity.load_state_dict(loaded, assign=True)
        return _Adapter(similarities, _values(state, left, made))


class _Parameters(dict[int, nn.Parameter]):
    """One parameter for each tensor, even where several layers have it."""

    def of(self, tensor: Tensor) -> nn.Parameter:
        return self.setdefault(id(tensor), nn.Parameter(tensor))


def _values(
    state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], made: _Parameters
) -> dict[str, Tensor]:
    """What replaces parameters and buffers of the backbone."""
    values: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        present = state.get(key)
        if present is None or present.shape != tensor.shape:
            raise ValueError(
                f"{key} must be {tuple(tensor.shape)} in the backbone, got "
                f"{None if present is None else tuple(present.shape)}; give it the same head"
            )
        values[key] = made.of(tensor) if isinstance(present, nn.Parameter) else tensor
    return values


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn every error that a file causes into one that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{path} is not an adapter of this network: {kind}{error}") from error


def _check_backbone(have: Mapping[str, str], need: Mapping[str, str]) -> None:
    """Raise a `ValueError` where digests differ."""
    reasons = {
        "names": "its parameters and buffers have other names, shapes or types",
        "parameters": "its weights differ",
        "buffers": "its weights are the same, but its buffers differ; running statistics that "
        'training changed are saved by extra="*running*"',
    }
    for name, reason in reasons.items():
        if have[name] != need[name]:
            raise ValueError(f"it belongs to another backbone: {reason}")

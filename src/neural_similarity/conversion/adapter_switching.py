"""Adapters, what a network learned on top of a backbone: loaded and switched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from neural_similarity.choices import require_flag
from neural_similarity.conversion.adapter_file import Adapter, adapter_of
from neural_similarity.conversion.adapter_saving import File, restore_saving, save_both
from neural_similarity.conversion.backbone_state import (
    States,
    forget_states,
    mark_trained,
    set_state,
    take_states,
)
from neural_similarity.conversion.freezing import AnyNetwork, similarities_of
from neural_similarity.conversion.planning import PrintedTable
from neural_similarity.conversion.surgery import copy_in_modes, whole_or_nothing
from neural_similarity.conversion.where import plain_modules
from neural_similarity.nn import DynamicSimilarity, SimilarityLayer
from neural_similarity.nn.layer import become_ours, has_similarity
from neural_similarity.nn.modes import check_module, first_parameter
from neural_similarity.nn.own_forward import computes_kernel, settle_weights


def load_adapter(backbone: AnyNetwork, path: File, inplace: bool = False) -> AnyNetwork:
    """Load what `save_adapter` wrote onto its backbone; the network is the same, bit for bit.

    Args:
        backbone: The network without similarities, with the same weights; other parts that the file
            holds may have other values, and a linear head another number of outputs. It may be
            compiled or inside DistributedDataParallel, whether the saved one was or not.
        path: Path of the file. It may come from anyone: nothing in it is executed.
        inplace: Adapt `backbone` itself, not a copy; if that fails, it is left unchanged.

    Returns:
        `backbone` with the adapter's similarities and tensors: a copy, unless `inplace`.

    Raises:
        ValueError: `backbone` has similarities, or is not the one of the file, or the file was not
            written by `save_adapter`, or holds values that are not finite or that the network's
            types cannot hold exactly. All messages but the first name the file.
        FileNotFoundError: there is no such file.
    """
    check_module(backbone, "backbone")
    require_flag("inplace", inplace)
    switch = adapters(backbone if inplace else copy_in_modes(backbone), adapter=path)
    return cast(AnyNetwork, switch.use("adapter").backbone)


def adapters(backbone: nn.Module, **files: File) -> "Adapters":
    """Put several named adapters on one backbone, none of them active; see `Adapters`.

    Returns:
        The switch: `use(name)` activates an adapter, `use(None)` deactivates it.

    Raises:
        ValueError, FileNotFoundError: as `load_adapter`.
    """
    switch = Adapters(backbone)
    for name, file in files.items():
        switch.add(name, file)
    return switch


class Adapters(PrintedTable):
    """Switches a backbone, in place, between adapters and none, merged or not.

    Layers and parameters of the backbone stay the same objects: without an adapter it computes what
    it did before, to the last bit. A switch that fails changes nothing. Adapters take the
    device and type of the layers, if the backbone was moved or cast in the meantime. `print` shows
    a table with the size of each.

    A switch changes one layer after another. No other thread may run the backbone meanwhile:
    `hold` is one lock for both.

    Args:
        backbone: A network without similarities.

    Raises:
        ValueError: the backbone has similarities.
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
        self._adapters: dict[str, Adapter] = {}
        self._modules = plain_modules(backbone, remove_duplicate=False)
        self._kinds = {name: type(module) for name, module in self._modules.items()}
        self._replaced: dict[str, Tensor] = {}
        self._folded: dict[str, Tensor] = {}
        self._states: States | None = None
        self._lock = RLock()
        settle_weights(backbone)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=RLock())

    def table_rows(self) -> list[tuple[str, ...]]:
        """Name, layers with M, how many numbers it holds, in kB."""
        rows: list[tuple[str, ...]] = [("adapter", "layers", "scalars", "kB")]
        for name, adapter in self._adapters.items():
            tensors = adapter.tensors()
            count = sum(tensor.numel() for tensor in tensors)
            size = sum(tensor.nbytes for tensor in tensors) / 1000
            rows.append((name, f"{len(adapter.similarities)}", f"{count:,}", f"{size:,.1f}"))
        return rows

    def table_summary(self) -> str:
        """What is active."""
        merged = ", merged" if self.merged else ""
        return "none is active" if self.active is None else f"{self.active!r} is active{merged}"

    @contextmanager
    def hold(self, name: str | None, merged: bool = False) -> Iterator[nn.Module]:
        """The backbone with an adapter that no other thread switches before the block ends.

        Raises:
            ValueError: as `use`.
        """
        with self._lock:
            yield self.use(name, merged).backbone

    def add(self, name: str, file: File) -> Self:
        """Read one more adapter. Raises as `load_adapter`."""
        with self._lock:
            active, merged, before = self.active, self.merged, dict(self._adapters)
            self.use(None)
            try:
                self._adapters[name] = adapter_of(self.backbone, Path(file))
                self._states = self._states or take_states(self.backbone, ())
                self.use(active, merged)
            except BaseException:
                self._adapters = before
                self.use(active, merged)
                raise
        return self

    def use(self, name: str | None, merged: bool = False) -> Self:
        """Switch to an adapter; None switches back to the plain backbone.

        If that fails or is interrupted, everything is left as it was.

        Args:
            name: Name of the adapter.
            merged: Fold M into the kernels: the layers are plain until the next `use`.

        Raises:
            ValueError: no adapter has that name, or a similarity to merge is dynamic, or a layer
                computes the kernel to merge into (pruning, weight norm, timm's `ScaledStdConv2d`),
                or a kernel was written while the adapter before was merged.
        """
        if name is not None and name not in self._adapters:
            raise ValueError(f"`name` must be one of {', '.join(self._adapters)}, got {name!r}")
        adapter = Adapter({}, {}) if name is None else self._adapters[name]
        if merged and any(isinstance(m, DynamicSimilarity) for m in adapter.modules()):
            raise ValueError(f"`merged` must be False for {name!r}, whose similarities are dynamic")
        with self._lock:
            self._switch(name, adapter, merged)
        return self

    def _switch(self, name: str | None, adapter: Adapter, merged: bool) -> None:
        before = dict(vars(self))
        try:
            with whole_or_nothing(self.backbone):
                self._take_off()
                self._put_on(adapter, merged)
                self.active, self.merged = name, merged
        except BaseException:
            vars(self).update(before)
            raise

    def _put_on(self, adapter: Adapter, merged: bool) -> None:
        # A value may be a kernel that M is merged into, so that values come first.
        replaced = {key: self._replace_tensor(key, value) for key, value in adapter.values.items()}
        for name, similarity in adapter.similarities.items():
            if merged and computes_kernel(self._modules[name]):
                raise ValueError(
                    f"`merged` must be False, as layer {name!r} computes its kernel at every call; "
                    "if by a hook or a parametrization, remove the hook first"
                )
            kernels = self._equip(self._modules[name], similarity, merged)
            for kernel, value in kernels.items():
                replaced.setdefault(f"{name}.{kernel}", value)
                self._folded[f"{name}.{kernel}"] = getattr(self._modules[name], kernel).clone()
        self._replaced = replaced
        if adapter.similarities or adapter.values:
            self._remember(adapter, merged)

    def _equip(self, layer: nn.Module, similarity: nn.Module, merged: bool) -> dict[str, Tensor]:
        """Give a layer its similarity, or merge M into its kernels and return the old kernels."""
        parameter = first_parameter(layer)
        ours = become_ours(layer)
        ours.similarity = similarity.to(parameter.device, parameter.dtype).train(layer.training)
        if not merged:
            return {}
        kernels = {kernel: getattr(layer, kernel) for kernel in ours.similarities()}
        SimilarityLayer.fold(ours)
        return kernels

    def _remember(self, adapter: Adapter, merged: bool) -> None:
        """Let `save_adapter` and `save_pretrained` know what is the backbone and what is not."""
        for module, state in (self._states or {}).items():
            set_state(module, state)
        inside = similarities_of(self.backbone)
        mark_trained(self.backbone, inside, adapter.values.values())
        if not merged:
            save_both(self.backbone)

    def _check_folded(self) -> None:
        """Check that no kernel was written while M was merged into it: that would be lost."""
        for key, folded in self._folded.items():
            owner, _, name = key.rpartition(".")
            kernel = getattr(self._modules[owner], name)
            if not torch.allclose(kernel, folded.to(kernel), rtol=0, atol=0, equal_nan=True):
                raise ValueError(
                    f"`{key}` must stay as it is while {self.active!r} is merged, got one that was "
                    "written; copy the backbone to keep it, or put the merged kernel back"
                )

    def _take_off(self) -> None:
        self._check_folded()
        on = self._adapters[self.active].similarities if self.active else {}
        for name in on:
            layer, kind = become_ours(self._modules[name]), self._kinds[name]
            layer.similarity = None
            if not issubclass(kind, SimilarityLayer):
                layer.without_similarity()
            cast(nn.Module, layer).__class__ = kind
        for key, tensor in self._replaced.items():
            self._replace_tensor(key, tensor)
        self._replaced, self._folded = {}, {}
        forget_states(self.backbone)
        restore_saving(self.backbone)

    def _replace_tensor(self, key: str, tensor: Tensor) -> Tensor:
        """Replace a parameter or buffer by a tensor of its device and type; return the old one."""
        owner, _, name = key.rpartition(".")
        module = self._modules[owner]
        before = getattr(module, name)
        tensor.data = tensor.data.to(before.device, before.dtype)
        setattr(module, name, tensor)
        if name == "weight" and isinstance(module, nn.Linear):  # a head of other outputs
            module.out_features = len(tensor)
        return before

"""The layer of PEFT's that holds the similarities of all adapters."""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn

from neural_similarity.conversion.where import plain_name
from neural_similarity.nn import DynamicSimilarity, StaticSimilarity
from neural_similarity.nn.layer import build_for, counterpart_of
from neural_similarity.peft.config import NslConfig

_RANDOM_START = 0.1


class NslLayer(nn.Module, BaseTunerLayer):
    """One of torch's layers with a similarity for each adapter.

    Several active adapters add their changes of the kernel, W + Σ (Wᵢ Mᵢ − W), merged or not, where
    Wᵢ is W unless the adapter trains all: then it has a copy of the layer, in `nsl_layer`. While
    some are merged, the kernel without M is kept aside: unmerging puts it back, the same parameter,
    and other layers that are tied to it are not touched.
    """

    adapter_layer_names = ("nsl_similarity", "nsl_layer")

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: NslConfig, name: str):
        super().__init__()
        self.name = name
        self.base_layer = base_layer
        self.nsl_similarity, self.nsl_layer = nn.ModuleDict(), nn.ModuleDict()
        self.merged_adapters = []
        self._active_adapter = adapter_name
        # Weight, and bias where that changes, without and with what is merged.
        self._plain: dict[str, tuple[nn.Parameter, Tensor]] = {}
        unit = "channels" if hasattr(base_layer, "in_channels") else "features"
        self.in_features = getattr(base_layer, f"in_{unit}")
        self.out_features = getattr(base_layer, f"out_{unit}")
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: NslConfig) -> None:
        """Add an adapter, or replace it."""
        base = self.get_base_layer()
        similarity = build_for(base, config.spec)
        for parameter in () if config.init_weights else similarity.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=_RANDOM_START)
        self.nsl_similarity[adapter_name] = similarity.train(self.training)
        if self.name in config.trained:
            self.nsl_layer[adapter_name] = copied = deepcopy(base)
            for key, (plain, _) in self._plain.items():
                setattr(copied, key, nn.Parameter(plain.detach().clone()))
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters, inference_mode=bool(config.inference_mode))

    def adapters_here(self, names: Collection[str]) -> list[str]:
        """Those of the adapters that the layer has."""
        return [name for name in names if name in self.nsl_similarity]

    def forward(
        self, x: Tensor, *args: Any, adapter_names: Sequence[str] | None = None, **kwargs: Any
    ) -> Tensor:
        """The layer's output with the active adapters, or those that `adapter_names` has by row."""
        ModulesToSaveWrapper._check_forward_args(cast(Any, self), x, adapter_names=adapter_names)
        if self.disable_adapters and self.merged:
            self.unmerge()
        if not adapter_names:
            return self._forward_with(self.active_adapters, x, *args, **kwargs)
        order = sorted(range(len(x)), key=adapter_names.__getitem__)
        parts = [
            self._forward_with([name], x[[*rows]], *args, **kwargs)
            for name, rows in groupby(order, adapter_names.__getitem__)
        ]
        return torch.cat(parts)[sorted(range(len(x)), key=order.__getitem__)]

    def _forward_with(
        self, adapters: Collection[str], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        names = self.adapters_here(adapters)
        if self.disable_adapters or self.merged or not names:
            return self.base_layer(x, *args, **kwargs)
        base = cast(Any, self.get_base_layer())
        ours = cast(Any, counterpart_of(base))
        alone = [*self._dynamic(names), *(n for n in names if n in self.nsl_layer)]
        outputs = [self._output_of(name, x, *args, **kwargs) for name in dict.fromkeys(alone)]
        if summed := [name for name in names if name not in alone]:
            kernel = self._kernel_with(summed, base.weight)
            outputs.append(ours.static_forward(base, x, kernel, *args, **kwargs))
        if len(outputs) == 1:
            return outputs[0]
        return _sum_changes(base(x, *args, **kwargs), outputs)

    def _output_of(self, name: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output of an adapter that is not a change of the base layer's kernel alone."""
        layer, part = self._layer_of(name), self.nsl_similarity[name]
        ours = cast(Any, counterpart_of(layer))
        if isinstance(part, DynamicSimilarity):
            return ours.dynamic_forward(layer, x, part)
        kernel = self._kernel_with([name], layer.weight)
        return ours.static_forward(layer, x, kernel, *args, **kwargs)

    def _layer_of(self, name: str) -> Any:
        """The layer that an adapter's M acts on."""
        return self.nsl_layer[name] if name in self.nsl_layer else self.get_base_layer()

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Fold the similarities of adapters, by default of the active ones, into the kernel.

        Raises:
            ValueError: one of them is dynamic; `safe_merge` finds a kernel that is not finite; or
                the kernel was written while others were merged.
        """
        names = self.adapters_here(check_adapters_to_merge(self, adapter_names))
        if dynamic := self._dynamic(names):
            raise ValueError(
                f"{self.name!r}: `adapter_names` to merge must be static, got the dynamic {dynamic}"
            )
        if not names:
            return
        base, plain = cast(Any, self.get_base_layer()), self._plain_tensors()
        merged = [*self.merged_adapters, *names]
        changed = self._merged_tensors(merged, {n: t.to(base.weight) for n, t in plain.items()})
        if safe_merge and not all(tensor.isfinite().all() for tensor in changed.values()):
            raise ValueError(
                f"{self.name!r}: the kernel with {names} merged must be finite, got NaN or infinity"
            )
        for key, tensor in changed.items():
            trains = getattr(base, key).requires_grad
            setattr(base, key, nn.Parameter(tensor.clone(), trains))
        self._plain = {key: (plain[key], tensor) for key, tensor in changed.items()}
        self.merged_adapters = merged

    @torch.no_grad()
    def _merged_tensors(
        self, names: Sequence[str], plain: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The kernel with adapters merged, and the bias where one of them has its own."""
        tensors = {"weight": self._kernel_with(names, plain["weight"])}
        layers = [self.nsl_layer[name] for name in names if name in self.nsl_layer]
        if layers and "bias" in plain:
            tensors["bias"] = _sum_changes(plain["bias"], [cast(Any, n).bias for n in layers])
        return tensors

    def unmerge(self) -> None:
        """Put the kernel without M back; a `ValueError` where the merged one was written."""
        base, plain = self.get_base_layer(), self._plain_tensors()
        for key in self._plain:
            plain[key].data = plain[key].data.to(getattr(base, key))
            setattr(base, key, plain[key])
        self._plain, self.merged_adapters = {}, []

    def _plain_tensors(self) -> dict[str, nn.Parameter]:
        """Kernel and bias without adapters, which would take the place of what was written."""
        tensors = dict(self.get_base_layer().named_parameters(recurse=False))
        for key, (plain, merged) in self._plain.items():
            now = tensors[key]
            if not torch.allclose(now, merged.to(now), rtol=0, atol=0, equal_nan=True):
                raise ValueError(
                    f"{self.name!r}: the {key} must stay as it is while {self.merged_adapters} "
                    "are merged, got one that was written; merge_and_unload() keeps what was "
                    "written"
                )
            tensors[key] = plain
        return tensors

    @torch.no_grad()
    def sum_into(self, name: str, weights: Mapping[str, float]) -> None:
        """Set a new adapter, linear in its raw parameters, to I + Σ wᵢ (Mᵢ − I) of others."""
        raw = cast(StaticSimilarity, self.nsl_similarity[name]).raw
        start = raw.clone()
        for other in self.adapters_here(weights):
            change = cast(StaticSimilarity, self.nsl_similarity[other]).raw - start
            raw.add_(change, alpha=weights[other])

    def _dynamic(self, names: Sequence[str]) -> list[str]:
        return [n for n in names if isinstance(self.nsl_similarity[n], DynamicSimilarity)]

    def _kernel_with(self, names: Sequence[str], plain: Tensor) -> Tensor:
        folded: list[Tensor] = []
        for name in names:
            kernel = self._layer_of(name).weight if name in self.nsl_layer else plain
            folded.append(cast(StaticSimilarity, self.nsl_similarity[name]).fold(kernel))
        return _sum_changes(plain, folded)


def _sum_changes(plain: Tensor, changed: Sequence[Tensor]) -> Tensor:
    """A tensor with the changes of all; exactly the changed one if it is alone."""
    if len(changed) == 1:
        return changed[0]
    return plain + torch.stack([each - plain for each in changed]).sum(0)


def nsl_layers(model: nn.Module) -> dict[str, NslLayer]:
    """The layers of a network that have adapters, by their names."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, NslLayer)}


def plain_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a network by their plain names, without what adapters added."""
    layers: dict[str, nn.Module] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside):
            continue
        if isinstance(module, BaseTunerLayer | ModulesToSaveWrapper):
            inside += (f"{name}.",)
            within = "base_layer" if isinstance(module, BaseTunerLayer) else "original_module"
            module = cast(nn.Module, module).get_submodule(within)
        layers[plain_name(name)] = module
    return layers


def exact_pattern(names: Collection[str] | Mapping[str, Any]) -> str:
    """The regular expression of exactly these names; PEFT reads names in a list as ends."""
    return "|".join(re.escape(plain_name(name)) for name in names)


def is_linear(similarity: nn.Module) -> bool:
    """Whether M − I is linear in the change of what is learned, tried at random points."""
    if not isinstance(similarity, StaticSimilarity):
        return False
    with torch.device("cpu"):
        structure = similarity.spec.structure.build(similarity.geometry).double()
        start = structure.initial().double()
        generator = torch.Generator().manual_seed(0)
        a, b = torch.randn(2, len(start), dtype=start.dtype, generator=generator)
        m = structure(torch.stack([start, start + a, start + b, start + 2 * a - 3 * b]))
    return torch.allclose(m[3] - m[0], 2 * (m[1] - m[0]) - 3 * (m[2] - m[0]))

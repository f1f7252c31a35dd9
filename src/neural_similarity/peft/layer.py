"""The layer of PEFT's that holds the similarities of all adapters."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn

from neural_similarity.nn import DynamicSimilarity, StaticSimilarity
from neural_similarity.nn.layer import build_for, counterpart_of
from neural_similarity.peft.config import NslConfig

_RANDOM_START = 0.1


class NslLayer(nn.Module, BaseTunerLayer):
    """One of torch's layers with a similarity for each adapter.

    Several active adapters add their changes of the kernel, W + Σ (W Mᵢ − W), merged or not. While
    some are merged, the kernel without M is kept aside: unmerging puts it back, the same parameter,
    and other layers that are tied to it are not touched.
    """

    adapter_layer_names = ("nsl_similarity",)

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: NslConfig, name: str):
        super().__init__()
        self.name = name
        self.base_layer = base_layer
        self.nsl_similarity = nn.ModuleDict()
        self.merged_adapters = []
        self._active_adapter = adapter_name
        # Without and with M, while adapters are merged; in a tuple, so not in the state dict.
        self._kernels: tuple[nn.Parameter, Tensor] | None = None
        unit = "channels" if hasattr(base_layer, "in_channels") else "features"
        self.in_features = getattr(base_layer, f"in_{unit}")
        self.out_features = getattr(base_layer, f"out_{unit}")
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: NslConfig) -> None:
        """Add an adapter, or replace it."""
        similarity = build_for(self.get_base_layer(), config.spec)
        if not config.init_weights:
            _add_noise(similarity)
        self.nsl_similarity[adapter_name] = similarity.train(self.training)
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
        dynamic = self._dynamic(names)
        outputs = [ours.dynamic_forward(base, x, self.nsl_similarity[name]) for name in dynamic]
        if static := [name for name in names if name not in dynamic]:
            kernel = self._kernel_with(static, base.weight)
            outputs.append(ours.static_forward(base, x, kernel, *args, **kwargs))
        if len(outputs) == 1:
            return outputs[0]
        return _sum_changes(base(x, *args, **kwargs), outputs)

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
        base, plain = self.get_base_layer(), self._plain_kernel()
        weight, merged = cast(nn.Parameter, base.weight), [*self.merged_adapters, *names]
        with torch.no_grad():
            kernel = self._kernel_with(merged, plain.to(weight))
        if safe_merge and not kernel.isfinite().all():
            raise ValueError(
                f"{self.name!r}: the kernel with {names} merged must be finite, got NaN or infinity"
            )
        base.weight = nn.Parameter(kernel.clone(), weight.requires_grad)
        self._kernels, self.merged_adapters = (plain, kernel), merged

    def unmerge(self) -> None:
        """Put the kernel without M back; a `ValueError` where the merged one was written."""
        if self._kernels is None:
            return
        base, plain = self.get_base_layer(), self._plain_kernel()
        plain.data = plain.data.to(cast(nn.Parameter, base.weight))
        base.weight = plain
        self._kernels, self.merged_adapters = None, []

    def _plain_kernel(self) -> nn.Parameter:
        """The kernel without M, which would take the place of one that was written."""
        weight = cast(nn.Parameter, self.get_base_layer().weight)
        if self._kernels is None:
            return weight
        plain, merged = self._kernels
        if not torch.allclose(weight, merged.to(weight), rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"{self.name!r}: the kernel must stay as it is while {self.merged_adapters} are "
                "merged, got one that was written; merge_and_unload() keeps what was written"
            )
        return plain

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
        parts = [cast(StaticSimilarity, self.nsl_similarity[name]) for name in names]
        return _sum_changes(plain, [part.fold(plain) for part in parts])


def _sum_changes(plain: Tensor, changed: Sequence[Tensor]) -> Tensor:
    """A tensor with the changes of all; exactly the changed one if it is alone."""
    if len(changed) == 1:
        return changed[0]
    return plain + torch.stack([each - plain for each in changed]).sum(0)


@torch.no_grad()
def _add_noise(similarity: nn.Module) -> None:
    for parameter in similarity.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=_RANDOM_START)

"""Other parameter-efficient adapters of convolutions; they merge into kernels as static M does."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import import_optional
from neural_similarity.conversion import plan
from neural_similarity.nn import Diagonal, Static

Baseline = Literal["none", "ssf", "lora", "oft", "turn"]
RANK = 1
"""The rank of LoRA, the least: 6,331 parameters for ResNet-20; full M in every layer has 1,539."""
BLOCK = 4
"""Filters in each block of diag-OFT, LyCORIS's default."""


class BaselineConv2d(nn.Conv2d, ABC):
    """A convolution whose kernel and bias are computed from its own and a few new parameters."""

    @abstractmethod
    def add_parameters(self) -> None:
        """Add the new parameters, with values at which the layer computes the same as before."""

    @abstractmethod
    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        """The kernel and bias of the layer."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, *self.effective_kernel())

    def plain_layer(self) -> nn.Module:
        """The equivalent plain convolution."""
        layer = nn.utils.skip_init(
            nn.Conv2d, self.in_channels, self.out_channels, self.kernel_size,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
            padding_mode=self.padding_mode, device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        kernel, bias = self.effective_kernel()
        layer.weight = nn.Parameter(kernel)
        layer.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        return layer


class ScaleShift(BaselineConv2d):
    """s (W * x + b) + t with s, t of each filter: SSF (Lian et al., arXiv:2210.08823).

    Starts at s = 1, t = 0.
    """

    def add_parameters(self) -> None:
        self.scale = nn.Parameter(self.weight.new_ones(self.out_channels))
        self.shift = nn.Parameter(self.weight.new_zeros(self.out_channels))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        kernel = self.weight * self.scale[:, None, None, None]
        return kernel, self.shift if self.bias is None else self.bias * self.scale + self.shift


class Turned(BaselineConv2d):
    """R W, R orthogonal within blocks of filters: diag-OFT (Qiu et al., arXiv:2306.07280).

    As in LyCORIS, R = (I + Q)(I - Q)^-1 with Q = B - Bᵀ, and B (blocks, size, size) starts at 0.
    """

    def add_parameters(self) -> None:
        self.blocks = nn.Parameter(
            _import_lycoris().weight_gen(self.weight, BLOCK)[0].to(self.weight)
        )

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        # Pinned, as other backends round differently.
        change = _import_lycoris().diff_weight(self.weight, self.blocks, None, backend="torch")
        return self.weight + change, self.bias


class TurnedInput(nn.Conv2d):
    """A first convolution of images that are turned by an angle, in right angles, from 0 on.

    The trivial baseline of `ns.Affine("angle")`; bilinear, zero outside. No kernel computes the
    same, so it cannot be merged.
    """

    def add_parameters(self) -> None:
        """Add the angle, which starts at 0."""
        self.angle = nn.Parameter(self.weight.new_zeros(1))

    def forward(self, input: Tensor) -> Tensor:
        cos, sin = (f(self.angle * math.pi / 2) for f in (torch.cos, torch.sin))
        rows = torch.stack([torch.cat([cos, -sin, 0 * cos]), torch.cat([sin, cos, 0 * cos])])
        grid = F.affine_grid(rows.expand(len(input), 2, 3), list(input.shape), align_corners=False)
        return super().forward(F.grid_sample(input, grid.to(input), align_corners=False))


def _import_lycoris() -> Any:
    return import_optional("lycoris.functional.diag_oft", "diag-OFT", "adapt")


def _change_layers(network: nn.Module, baseline: Baseline, layers: Mapping[str, nn.Conv2d]) -> None:
    if baseline == "lora":
        grouped = [name for name, layer in layers.items() if layer.groups > 1]
        if grouped:
            raise ValueError(
                f"`baseline` must not be lora of grouped convolutions, got {', '.join(grouped)}; "
                "choose others by `where`"
            )
        peft = import_optional("peft", "LoRA", "adapt")
        # A regular expression, since PEFT matches each name of a list as a suffix of longer ones.
        names = "|".join(map(re.escape, layers))
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names)
        peft.inject_adapter_in_model(config, network)
        return
    kinds = {"ssf": ScaleShift, "oft": Turned, "turn": TurnedInput}
    for layer in layers.values():
        layer.__class__ = kinds[baseline]
        cast(Any, layer).add_parameters()


PARTS: dict[Baseline, tuple[str, ...]] = {
    "ssf": ("scale", "shift"),
    "lora": ("lora_A", "lora_B"),
    "oft": ("blocks",),
    "turn": ("angle",),
}
"""The new parameters of a layer."""


def with_baseline(network: nn.Module, baseline: Baseline, where: str | None = None) -> list[str]:
    """Add a baseline to the 2-d convolutions that `ns.convert` would convert, in place.

    Outputs stay the same. "turn" changes the first convolution only.

    Returns:
        Names of the new parameters.

    Raises:
        ModuleNotFoundError: LoRA needs peft, diag-OFT lycoris-lora.
        ValueError: there is no such convolution, LoRA gets a grouped one, or "turn" not the first.
    """
    if baseline == "none":
        return []
    reasons = plan(network, Static(Diagonal()), where=where)
    converted = {name: network.get_submodule(name) for name, why in reasons.items() if why is None}
    layers = {name: m for name, m in converted.items() if isinstance(m, nn.Conv2d)}
    if not layers:
        raise ValueError(
            f"`baseline` must have convolutions to change, got a network without:\n{reasons}"
        )
    if baseline == "turn":
        first = next(name for name, m in network.named_modules() if isinstance(m, nn.Conv2d))
        if first not in layers:
            raise ValueError(f"`baseline` must not be turn where {first} is not converted")
        layers = {first: layers[first]}
    _change_layers(network, baseline, layers)
    return [f"{name}.{part}" for name in layers for part in PARTS[baseline]]


@torch.no_grad()
def merge_baselines(network: nn.Module) -> nn.Module:
    """A copy in which baselines are merged into kernels and biases of plain convolutions."""
    network = deepcopy(network)
    for name, layer in list(network.named_modules()):
        if isinstance(layer, BaselineConv2d):
            network.set_submodule(name, layer.plain_layer())
        elif hasattr(layer, "lora_A"):
            lora = cast(Any, layer)
            lora.merge()
            network.set_submodule(name, lora.get_base_layer())
    return network

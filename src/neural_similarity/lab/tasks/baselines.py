"""Other parameter-efficient adapters: docs/reference/baselines.md lists them."""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal, cast

import torch
from torch import nn

from neural_similarity.choices import import_optional, require_installed
from neural_similarity.conversion import head_name, plan
from neural_similarity.lab.tasks.tuned import (
    ConvAdapter,
    FeatureModulation,
    Film,
    FilterAtoms,
    LoraC,
    LoraC4,
    Piggyback,
    ResidualAdapter,
    ResidualVector,
    ScaleShift,
    TunedConv2d,
    TunedLayer,
    Turned,
    TurnedInput,
)
from neural_similarity.lab.tasks.tuned_kin import AlignedLinear, CodedAtoms, StemlessAdapter
from neural_similarity.nn import Conv2d, Diagonal, Static

Baseline = Literal[
    "none", "ssf", "film", "lora", "lora-c", "lora-c4", "oft", "atoms", "residual",
    "residual-vector", "conv-adapter", "adafm", "piggyback", "turn", "tsa", "atoms-9",
]  # fmt: skip
RANK = 1
"""The rank of LoRA, the least: 6,331 parameters for ResNet-20; full M in every layer has 1,539."""

LAYER_BASELINES: dict[str, type[TunedLayer]] = {
    "ssf": ScaleShift,
    "film": Film,
    "lora-c": LoraC,
    "lora-c4": LoraC4,
    "oft": Turned,
    "atoms": FilterAtoms,
    "residual": ResidualAdapter,
    "residual-vector": ResidualVector,
    "conv-adapter": ConvAdapter,
    "adafm": FeatureModulation,
    "piggyback": Piggyback,
    "turn": TurnedInput,
    "tsa": StemlessAdapter,
    "atoms-9": CodedAtoms,
}
"""The baselines that are layers; LoRA is PEFT's."""
_LIBRARIES = {"lora": ("peft", "LoRA"), "oft": ("lycoris", "diag-OFT")}


def require_library(baseline: Baseline) -> None:
    """Check that the library which computes a baseline is installed."""
    if baseline in _LIBRARIES:
        require_installed(*_LIBRARIES[baseline], "baselines")


def _add_lora(network: nn.Module, layers: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Add LoRA by PEFT, B A x with B = 0 at first; names of the new parts of a layer."""
    grouped = [name for name, layer in layers.items() if cast(nn.Conv2d, layer).groups > 1]
    if grouped:
        raise ValueError(
            f"`baseline` must not be lora of grouped convolutions, got {', '.join(grouped)}; "
            "choose others by `where`"
        )
    peft = import_optional("peft", "LoRA", "baselines")
    # A regular expression, since PEFT matches each name of a list as a suffix of longer ones.
    names = "|".join(map(re.escape, layers))
    config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names)
    peft.inject_adapter_in_model(config, network)
    return "lora_A", "lora_B"


def _add_layers(kind: type[TunedLayer], layers: Mapping[str, nn.Module]) -> tuple[str, ...]:
    for layer in layers.values():
        layer.__class__ = kind
        cast(TunedLayer, layer).add_parameters()
    return kind.PARTS


def with_baseline(network: nn.Module, baseline: Baseline, where: str | None = None) -> list[str]:
    """Add a baseline to the 2-d convolutions that `ns.convert` would convert, in place.

    Outputs stay the same. "turn" changes the first convolution only, "film" all normalisation, and
    "tsa" all convolutions but the first, and a linear head.

    Returns:
        Names of the new parameters.

    Raises:
        ModuleNotFoundError: LoRA needs peft, diag-OFT lycoris-lora.
        ValueError: there is no such layer, LoRA gets a grouped one, "turn" not the first, or "film"
            some layers.
    """
    if baseline == "none":
        return []
    layers = _layers_to_change(network, baseline, where)
    if baseline == "lora":
        parts = _add_lora(network, layers)
    else:
        parts = _add_layers(LAYER_BASELINES[baseline], layers)
    names = [f"{name}.{part}" for name in layers for part in parts]
    return names + (_align_head(network) if baseline == "tsa" else [])


def _align_head(network: nn.Module) -> list[str]:
    """Add TSA's alignment to a linear head; names of its parameters."""
    head = network.get_submodule(name := head_name(network))
    if type(head) is not nn.Linear:
        return []
    return [f"{name}.{part}" for part in _add_layers(AlignedLinear, {name: head})]


def _layers_to_change(
    network: nn.Module, baseline: Baseline, where: str | None
) -> Mapping[str, nn.Module]:
    if baseline == "film":
        return _norms_to_change(network, where)
    reasons = plan(network, Static(Diagonal()), where=where)
    converted = {name: network.get_submodule(name) for name, why in reasons.items() if why is None}
    layers = {name: m for name, m in converted.items() if _is_plain(m)}
    first = next((name for name, m in network.named_modules() if isinstance(m, nn.Conv2d)), "")
    if baseline == "tsa":
        layers.pop(first, None)
    if not layers:
        raise ValueError(
            "`baseline` must have convolutions to change, without a `forward` or a "
            f"parametrisation of their own, got a network without:\n{reasons}"
        )
    if baseline != "turn":
        return layers
    if first not in layers:
        raise ValueError(f"`baseline` must not be turn where {first} is not converted")
    return {first: layers[first]}


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is a 2-d convolution that computes neither its kernel nor its padding."""
    if not isinstance(layer, nn.Conv2d) or "weight" not in layer._parameters:
        return False
    kind = type(layer)
    methods = kind.forward, kind._conv_forward
    return any(methods == (one.forward, one._conv_forward) for one in (nn.Conv2d, Conv2d))


def _norms_to_change(network: nn.Module, where: str | None) -> Mapping[str, nn.Module]:
    if where is not None:
        raise ValueError(f"`where` must be none for film, which changes all norms, got {where!r}")
    norms = {name: m for name, m in network.named_modules() if type(m) is nn.BatchNorm2d}
    if not norms or not all(norm.affine for norm in norms.values()):
        raise ValueError("`baseline` film must have nn.BatchNorm2d with gains and shifts to change")
    return norms


@torch.no_grad()
def merge_baselines(network: nn.Module) -> nn.Module:
    """A copy in which baselines are merged into plain layers, as far as these can express them.

    A layer with M stays: `ns.fold` merges both.
    """
    network = deepcopy(network)
    for name, layer in list(network.named_modules()):
        if getattr(layer, "similarity", None) is not None:
            continue
        if isinstance(layer, TunedConv2d | Film | AlignedLinear):
            network.set_submodule(name, layer.plain_layer())
        elif hasattr(layer, "lora_A"):
            lora = cast(Any, layer)
            lora.merge()
            network.set_submodule(name, lora.get_base_layer())
    return network

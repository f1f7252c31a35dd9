"""Other parameter-efficient adapters: docs/reference/baselines.md lists them."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Literal, cast

import torch
from torch import nn

from neural_similarity.choices import require_installed
from neural_similarity.conversion import head_name, plan
from neural_similarity.lab.tasks.tuned import (
    ConvAdapter,
    FeatureModulation,
    Film,
    FilterAtoms,
    Lora,
    LoraC,
    LoraC4,
    Piggyback,
    ResidualAdapter,
    ResidualVector,
    ScaleShift,
    TunedLayer,
    Turned,
    TurnedInput,
)
from neural_similarity.lab.tasks.tuned_related import AlignedLinear, CodedAtoms, StemlessAdapter
from neural_similarity.nn import Conv2d, Diagonal, Static

Baseline = Literal[
    "none", "ssf", "film", "lora", "lora-c", "lora-c4", "oft", "atoms", "residual",
    "residual-vector", "conv-adapter", "adafm", "piggyback", "turn", "tsa", "atoms-9",
]  # fmt: skip
BASELINES: dict[str, type[TunedLayer]] = {
    "ssf": ScaleShift,
    "film": Film,
    "lora": Lora,
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


def require_library(baseline: Baseline) -> None:
    """Check that the library which computes a baseline is installed."""
    if baseline == "oft":
        require_installed("lycoris", "diag-OFT", "baselines")


def with_baseline(network: nn.Module, baseline: Baseline, where: str | None = None) -> list[str]:
    """Add a baseline to the 2-d convolutions that `ns.convert` would convert, in place.

    Outputs stay the same. "turn" changes the first convolution only, "film" all normalisation, and
    "tsa" all convolutions but the first, and a linear head.

    Returns:
        Names of the new parameters.

    Raises:
        ModuleNotFoundError: diag-OFT needs lycoris-lora.
        ValueError: there is no such layer, "turn" does not get the first, or "film" some layers.
    """
    if baseline == "none":
        return []
    layers = _layers_to_change(network, baseline, where)
    names = _add_layers(BASELINES[baseline], layers)
    return names + (_align_head(network) if baseline == "tsa" else [])


def _add_layers(layer_class: type[TunedLayer], layers: Mapping[str, nn.Module]) -> list[str]:
    """Add the parameters of a class to layers; their names."""
    for layer in layers.values():
        layer.__class__ = layer_class
        cast(TunedLayer, layer).add_parameters()
    return [f"{name}.{part}" for name in layers for part in layer_class.PARTS]


def _align_head(network: nn.Module) -> list[str]:
    """Add TSA's alignment to a linear head; names of its parameters."""
    head = network.get_submodule(name := head_name(network))
    return _add_layers(AlignedLinear, {name: head}) if type(head) is nn.Linear else []


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
    """A copy in which baselines are merged into layers without, as far as these can express them.

    M stays, on the kernel that the baseline computed.
    """
    network = deepcopy(network)
    for name, layer in list(network.named_modules()):
        plain = layer.plain_layer() if isinstance(layer, TunedLayer) else None
        if plain is not None:
            network.set_submodule(name, plain)
    return network

"""Regularisation: parameter groups by weight decay, and penalties on static M."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.choices import public_names, require_least
from neural_similarity.nn import (
    DynamicSimilarity,
    MaskedModule,
    SelfAttention,
    SphereConv2d,
    StaticSimilarity,
)
from neural_similarity.nn.modes import check_module

__all__ = ["MEASURES", "Measure", "parameter_groups", "penalty"]
__dir__ = public_names(__name__)
Measure = Callable[[Tensor], Tensor]

MEASURES: dict[str, Measure] = {
    "l1": lambda m: m.abs().sum(),
    "nuclear": lambda m: torch.linalg.matrix_norm(m, "nuc").sum(),
    "deviation": lambda m: (m - torch.eye(m.shape[-1], device=m.device)).square().sum(),
}
"""The measures that `penalty` may sum, by name."""


def parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    similarity_decay: float = 0.0,
    predictor_decay: float | None = None,
    sphere_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters in groups for an optimiser, each with its decay.

    "weights": kernels, biases and normalisation, by `weight_decay`. "predictors": those of dynamic
    M, by `predictor_decay`, by default as weights. "spheres": hyperspherical kernels, if there is a
    `sphere_decay`. "similarities": static M by `similarity_decay`, towards the identity where the
    structure has a residual and towards zero where not.
    "undecayed": the gains of dynamic M, the masks of kernel shapes, and the learned k of
    hyperspherical convolutions. A parameter that fits several groups is in "undecayed" if that is
    one of them, else in "similarities". Empty groups are left out.

    Raises:
        ValueError: a decay is negative.
    """
    check_module(model)
    predictor_decay = weight_decay if predictor_decay is None else predictor_decay
    require_least("weight_decay", weight_decay, 0)
    require_least("similarity_decay", similarity_decay, 0)
    require_least("predictor_decay", predictor_decay, 0)
    if sphere_decay is not None:
        require_least("sphere_decay", sphere_decay, 0)
    decays = {
        "weights": weight_decay,
        "predictors": predictor_decay,
        "spheres": sphere_decay,
        "similarities": similarity_decay,
        "undecayed": 0.0,
    }
    groups = _parameters_by_group(model, with_spheres=sphere_decay is not None)
    return [
        {"name": name, "params": trained, "weight_decay": decay}
        for name, decay in decays.items()
        if (trained := [p for p in groups[name] if p.requires_grad])
    ]


def _parameters_by_group(
    model: nn.Module, *, with_spheres: bool
) -> dict[str, dict[nn.Parameter, None]]:
    """All parameters, each in the first of these groups that it fits."""
    groups: dict[str, dict[nn.Parameter, None]] = {
        name: {} for name in ("undecayed", "similarities", "predictors", "spheres", "weights")
    }
    for module in model.modules():
        if isinstance(module, StaticSimilarity):
            groups["similarities"] |= dict.fromkeys(module.parameters())
        elif isinstance(module, DynamicSimilarity):
            groups["predictors"] |= dict.fromkeys(module.predictor.parameters())
        elif isinstance(module, SphereConv2d) and with_spheres:
            groups["spheres"] |= _source_parameters(module, "weight")
        groups["undecayed"] |= _source_parameters(module, _undecayed_name(module))
    groups["weights"] = dict.fromkeys(model.parameters())
    taken: set[nn.Parameter] = set()
    for name, group in groups.items():
        groups[name] = {parameter: None for parameter in group if parameter not in taken}
        taken |= group.keys()
    return groups


def _undecayed_name(module: nn.Module) -> str | None:
    """The name of the parameter of `module` itself that must not decay, if any."""
    if isinstance(module, DynamicSimilarity | SelfAttention):
        return "gain"
    if isinstance(module, MaskedModule):
        return "mask"
    return "log_k" if isinstance(module, SphereConv2d) else None


def _source_parameters(module: nn.Module, name: str | None) -> dict[nn.Parameter, None]:
    """The parameter of that name, or those from which pruning or a parametrization computes it."""
    starts = f"{name}_", f"parametrizations.{name}."
    return {
        p: None for key, p in module.named_parameters() if key == name or key.startswith(starts)
    }


def penalty(model: nn.Module, measure: Measure | str = "l1") -> Tensor:
    r"""A penalty on all static M, to be added to the loss: $\sum_\ell \text{measure}(M_\ell)$.

    "l1" is soft sparsity, Σ|M| (paper, §3.4); "nuclear" the sum of the singular values, for low
    rank; "deviation" Σ(M - I)²; or any function of the matrices (*blocks, K, K) of a layer to a
    scalar. A network without static M has penalty 0.

    Raises:
        ValueError: there is no measure of that name.
    """
    if isinstance(measure, str):
        if measure not in MEASURES:
            raise ValueError(
                f"`measure` must be one of {', '.join(MEASURES)} or a function, got {measure!r}"
            )
        measure = MEASURES[measure]
    if not callable(measure):
        raise ValueError(f"`measure` must be a name or a function of M, got {measure!r}")
    check_module(model)
    static = [module for module in model.modules() if isinstance(module, StaticSimilarity)]
    if not static:
        return torch.zeros(())
    device = static[0].raw.device
    return torch.stack([measure(module.full_matrix()).to(device) for module in static]).sum()

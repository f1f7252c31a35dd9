"""Regularisation: parameter groups by weight decay, and penalties on static M."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.choices import require_least
from neural_similarity.nn import (
    DynamicSimilarity,
    MaskedModule,
    SelfAttention,
    SphereConv2d,
    StaticSimilarity,
)
from neural_similarity.nn.modes import check_module

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
    hyperspherical convolutions. Of several groups that a parameter fits it is in "undecayed", else
    in "similarities". Empty groups are left out.

    Raises:
        ValueError: a decay is negative.
    """
    check_module(model)
    required = {"weight_decay": weight_decay, "similarity_decay": similarity_decay}
    optional = {"predictor_decay": predictor_decay, "sphere_decay": sphere_decay}
    for name, decay in (required | optional).items():
        if decay is not None:
            require_least(name, decay, 0)
        elif name in required:
            raise ValueError(f"`{name}` must be at least 0, got None")
    groups: dict[str, dict[nn.Parameter, None]] = {
        name: {} for name in ("undecayed", "similarities", "predictors", "spheres", "weights")
    }
    for module in model.modules():
        if isinstance(module, StaticSimilarity):
            groups["similarities"] |= dict.fromkeys(module.parameters())
        elif isinstance(module, DynamicSimilarity):
            groups["predictors"] |= dict.fromkeys(module.predictor.parameters())
        elif isinstance(module, SphereConv2d) and sphere_decay is not None:
            groups["spheres"] |= _behind(module, "weight")
        groups["undecayed"] |= _behind(module, _undecayed(module))
    groups["weights"] = dict.fromkeys(model.parameters())
    taken: set[nn.Parameter] = set()
    for name, group in groups.items():
        groups[name] = {parameter: None for parameter in group if parameter not in taken}
        taken |= group.keys()
    decays = {
        "weights": weight_decay,
        "predictors": weight_decay if predictor_decay is None else predictor_decay,
        "spheres": sphere_decay,
        "similarities": similarity_decay,
        "undecayed": 0.0,
    }
    trained = {name: [p for p in groups[name] if p.requires_grad] for name in decays}
    return [
        {"name": name, "params": ps, "weight_decay": decays[name]}
        for name, ps in trained.items()
        if ps
    ]


def _undecayed(module: nn.Module) -> str | None:
    """The parameter of `module` itself that decay would not improve."""
    if isinstance(module, DynamicSimilarity | SelfAttention):
        return "gain"
    if isinstance(module, MaskedModule):
        return "mask"
    return "log_k" if isinstance(module, SphereConv2d) else None


def _behind(module: nn.Module, name: str | None) -> dict[nn.Parameter, None]:
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
    check_module(model)
    static = [module for module in model.modules() if isinstance(module, StaticSimilarity)]
    if not static:
        return torch.zeros(())
    device = static[0].raw.device
    return torch.stack([measure(module.full_matrix()).to(device) for module in static]).sum()

"""Optimisation of M: parameter groups with decays and a learning rate, and penalties."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from neural_similarity.choices import public_names, require_least
from neural_similarity.nn import (
    DynamicSimilarity,
    MaskedModule,
    SelfAttention,
    SphereConv2d,
    StaticSimilarity,
)
from neural_similarity.nn.modes import check_module, preserving_state

__all__ = ["MEASURES", "Measure", "parameter_groups", "penalty"]
__dir__ = public_names(__name__)
Measure = Callable[[Tensor], Tensor]

_PRODUCTS = 12
"""Products of the Hessian with a vector, by which its largest eigenvalue is estimated."""
_NO_SECOND_DERIVATIVE = (
    "derivative for", "ouble backward", "differentiate twice", "original forward and recomp",
)  # fmt: skip
"""Parts of torch's errors where a function has no second derivative, also inside a checkpoint."""
_SHARE_OF_LIMIT = 0.2
"""The learning rate over the one at which gradient descent leaves a quadratic minimum."""

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
    logits: Callable[[], Tensor] | None = None,
    momentum: float = 0.9,
) -> list[dict[str, Any]]:
    r"""Trainable parameters in groups for an optimiser, each with its decay.

    Each group has a "name":

    - "weights": kernels, biases and normalisation, with `weight_decay`;
    - "predictors": those of dynamic M, with `predictor_decay`, by default that of the weights;
    - "spheres": hyperspherical kernels, if there is a `sphere_decay`;
    - "similarities": static M, with `similarity_decay`, towards the identity if the structure has a
      residual, else towards zero;
    - "undecayed": the gains of dynamic M, the masks of kernel shapes, and the learned k of
      hyperspherical convolutions.

    A parameter that fits several groups is in "undecayed" if that is one of them, else in
    "similarities". Empty groups are left out.

    With `logits`, every group also has a learning rate for `torch.optim.SGD` and the `momentum`:
    $\eta = 0.2 \cdot 2(1 + \beta) / \lambda$, a fifth of the rate at which gradient descent with
    momentum $\beta$ leaves the minimum of a quadratic of curvature $\lambda$. $\lambda$ is the
    largest eigenvalue of the Gauss-Newton matrix $\frac1N \sum_n J_n^\top H J_n$ over all these
    parameters, by twelve products with a vector: $J_n$ is the derivative of the logits of image n,
    $H = (I - \frac1K 1 1^\top) / K$ the Hessian of the cross-entropy where all K classes are as
    likely. So it needs no labels, and does not grow where the loss is small. M's gradient is a sum
    over all kernels of a layer; this learning rate compensates for that, so that a step's
    effect on the folded kernels does not depend on their number or scale.

    Args:
        model: any network.
        weight_decay: of the weights.
        similarity_decay: of static M.
        predictor_decay: of the predictors of dynamic M.
        sphere_decay: of hyperspherical kernels.
        logits: computes the outputs (N, K, ...) for K classes on some images, such as `lambda:
            model(x)`; it is called once, and its memory is that of a training step. Buffers, random
            state and gradients are as before afterwards.
        momentum: β, for the rate.

    Returns:
        Groups for an optimiser, each with its "name" from above, "params" and "weight_decay"; with
        `logits` also "lr" and "momentum".

    Raises:
        ValueError: a decay is negative, the momentum not in [0, 1), or nothing trains, or `logits`
            is no function, or the logits are no tensor of floating point, do not depend on the
            parameters, overflow, have no second derivative, or are of fewer than two classes.
    """
    check_module(model)
    decays = {
        "weight": weight_decay,
        "predictor": weight_decay if predictor_decay is None else predictor_decay,
        "sphere": 0.0 if sphere_decay is None else sphere_decay,
        "similarity": similarity_decay,
    }
    for kind, decay in decays.items():
        require_least(f"{kind}_decay", decay, 0)
    names = ("weights", "predictors", "spheres", "similarities", "undecayed")
    members = _parameters_by_group(model, with_spheres=sphere_decay is not None)
    groups: list[dict[str, Any]] = [
        {"name": name, "params": trained, "weight_decay": decay}
        for name, decay in zip(names, (*decays.values(), 0.0), strict=True)
        if (trained := [p for p in members[name] if p.requires_grad])
    ]
    if logits is None:
        return groups
    if not callable(logits):
        raise ValueError(f"`logits` must be a function that computes outputs, got {logits!r}")
    if not (isinstance(momentum, Real) and 0 <= momentum < 1):
        raise ValueError(f"`momentum` must be at least 0 and below 1, got {momentum!r}")
    trained = [p for group in groups for p in group["params"]]
    if not trained:
        raise ValueError("`model` must have parameters that train for a learning rate, got none")
    with preserving_state(model):
        with _TwiceDifferentiable():
            loss = _uniform_loss(logits())
        with _without_hooks(trained):
            curvature = _largest_curvature(loss, trained)
    limit = 2 * (1 + momentum) / curvature
    return [group | {"lr": _SHARE_OF_LIMIT * limit, "momentum": momentum} for group in groups]


class _TwiceDifferentiable(TorchFunctionMode):
    """Computes activations for which torch has no second derivative by functions that have one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func not in (F.hardsigmoid, F.hardswish):
            return func(*args, **(kwargs or {}))
        named = kwargs or {}
        x, *rest = args or (named["input"],)
        in_place = named.get("inplace") or any(rest)
        old = x.clone() if in_place else x
        gate = F.relu6(old + 3) / 6
        value = gate if func is F.hardsigmoid else old * gate
        return x.copy_(value) if in_place else value


@contextmanager
def _without_hooks(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Without the hooks of these parameters.

    torch calls them for every gradient of these that `autograd.grad` returns, so that they would
    change the curvature twice over. The same dictionaries go back, from which handles remove them.
    """
    hooks = [parameter._backward_hooks for parameter in parameters]
    for parameter in parameters:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, own in zip(parameters, hooks, strict=True):
            parameter._backward_hooks = own


def _uniform_loss(logits: Tensor) -> Tensor:
    """A loss whose Hessian here is the Gauss-Newton matrix of cross-entropy at even odds."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"`logits` must return a tensor of floating point, got {kind}")
    if logits.dim() < 2 or logits.shape[1] < 2:
        raise ValueError(
            f"`logits` must return (images, classes, ...), two classes at least, got the shape "
            f"{tuple(logits.shape)}"
        )
    centred = logits - logits.mean(1, keepdim=True)
    return (centred - centred.detach()).square().mean() / 2


def _largest_curvature(loss: Tensor, parameters: list[nn.Parameter]) -> float:
    """The largest absolute eigenvalue of the Hessian of `loss`, by power iteration."""
    used: list[tuple[Tensor, nn.Parameter]] = []
    if loss.requires_grad:
        gradient = _derivatives(loss, parameters, create_graph=True, allow_unused=True)
        used = [(g, p) for g, p in zip(gradient, parameters, strict=True) if g is not None]
    if not used:
        raise ValueError("`logits` must depend on the parameters that train, with gradients on")
    value, random = 0.0, torch.Generator().manual_seed(0)
    vector: Sequence[Tensor] = [torch.randn(p.shape, generator=random).to(p) for _, p in used]
    for _ in range(_PRODUCTS):
        length = _length(vector)
        scaled = [part / length for part in vector]
        outputs, inputs = zip(*used, strict=True)
        vector = _derivatives(outputs, inputs, scaled, retain_graph=True, materialize_grads=True)
        value = _length(vector)
        if not 0 < value < inf:
            raise ValueError(
                f"`logits` must be finite and depend on the parameters, got a curvature of {value}"
            )
    return value


def _derivatives(*arguments: Any, **options: Any) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`; an error where something cannot be differentiated twice."""
    try:
        return torch.autograd.grad(*arguments, **options)
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_SECOND_DERIVATIVE):
            raise
        raise ValueError(
            f"`logits` must be differentiable twice, or the rate given: {error}"
        ) from error


def _length(vector: Sequence[Tensor]) -> float:
    """The norm of a vector in parts, in float32 at least: squares overflow in half precision."""
    wide = [part if part.dtype == torch.float64 else part.float() for part in vector]
    return torch.stack([part.square().sum() for part in wide]).sum().sqrt().item()


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

    Returns:
        The penalty, a scalar to add to the loss.

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

"""Surgery on any network: put similarities in, take them out, fold them, choose what decays."""

from collections.abc import Collection
from copy import deepcopy
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from neural_similarity.nn import Conv2d, Dynamic, DynamicSimilarity, StaticSimilarity
from neural_similarity.nn.conv import equip, geometry_of, strip
from neural_similarity.nn.structure import MaskedModule
from neural_similarity.nn.text import Similarity, parse_similarity

Network = TypeVar("Network", bound=nn.Module)
OnDynamic = Literal["error", "keep"]
NormMode = Literal["eval", "train"]

MOST_TAPS = 25
"""A dynamic matrix of more taps squared per position is not made unless asked for by name."""


def convert(
    model: Network,
    similarity: Similarity | str,
    where: Collection[str] | None = None,
    inplace: bool = False,
) -> Network:
    """`model` with a similarity in its convolutions, and the same outputs until it is trained.

    Converts every module that is exactly a `torch.nn.Conv2d` with more than one kernel tap:
    parameters, hooks, dtype, device and training mode stay, and a module that stands in several
    places stays one module. A second call changes nothing. `plan` tells what is skipped and why.

    Args:
        model: Any network; a copy is converted unless `inplace`.
        similarity: A name or spec that starts at the identity, see `ns.Conv2d`.
        where: Names of the modules to convert, as in `model.named_modules()`; by default all.
        inplace: Convert `model` itself.

    Raises:
        ValueError: a module named in `where` is missing or cannot be converted, or the similarity
            does not start at the identity.
    """
    spec = _identity_start(similarity)
    reasons = plan(model, spec, where)
    refused = {name: reasons[name] for name in where or () if reasons[name]}
    if refused:
        raise ValueError(f"`where` names modules that cannot be converted: {refused}")
    model = model if inplace else deepcopy(model)
    layers = dict(model.named_modules(remove_duplicate=False))
    for name, reason in reasons.items():
        layer = layers[name]
        if reason is None and isinstance(layer, nn.Conv2d) and not _has_similarity(layer):
            equip(layer, spec)
    return model


def plan(
    model: nn.Module, similarity: Similarity | str, where: Collection[str] | None = None
) -> dict[str, str | None]:
    """What `convert` does with each convolution: why it skips it, or None if it converts it.

    Raises:
        ValueError: `where` names what is not a convolution of the model.
    """
    spec = _identity_start(similarity)
    modules = dict(model.named_modules(remove_duplicate=False))
    inside = [f"{name}.similarity." for name, m in modules.items() if _has_similarity(m)]
    convolutions = {n: m for n, m in modules.items() if isinstance(m, nn.modules.conv._ConvNd)}
    missing = sorted(set(where or ()) - convolutions.keys())
    if missing:
        raise ValueError(f"`where` must name convolutions of the model, got {missing}")
    return {
        name: "is part of a similarity"
        if any(name.startswith(prefix.lstrip(".")) for prefix in inside)
        else _reason(name, layer, spec, where)
        for name, layer in convolutions.items()
    }


def _reason(
    name: str, layer: nn.Module, spec: Similarity, where: Collection[str] | None
) -> str | None:
    """Why a convolution is not converted."""
    if where is not None and name not in where:
        return "is not named in `where`"
    if _has_similarity(layer):
        return "has a similarity already"
    if not isinstance(layer, nn.Conv2d) or type(layer) not in (nn.Conv2d, Conv2d):
        return f"is a {type(layer).__name__}, not exactly a torch.nn.Conv2d"
    taps = layer.weight[0, 0].numel()
    if taps == 1:
        return "has a single kernel tap"
    scalars = spec.structure.build(geometry_of(layer)).scalars
    if isinstance(spec, Dynamic) and scalars > MOST_TAPS**2 and where is None:
        return f"would predict {scalars} numbers per position; name it in `where` to have that"
    return None


def _has_similarity(module: nn.Module) -> bool:
    return isinstance(module, Conv2d) and module.similarity is not None


def _identity_start(similarity: Similarity | str) -> Similarity:
    spec = parse_similarity(similarity) if isinstance(similarity, str) else similarity
    if not isinstance(spec, Similarity):
        raise ValueError(f"`similarity` must be a name or spec of a similarity, got {similarity!r}")
    if not spec.structure.contains_identity or (
        isinstance(spec, Dynamic) and spec.init != "identity"
    ):
        raise ValueError(f"`similarity` must start at the identity to be converted to, got {spec}")
    return spec


def unconvert(model: Network, inplace: bool = False) -> Network:
    """`model` with its similarities dropped: the plain network with the kernels it has now."""
    model = model if inplace else deepcopy(model)
    for layer in list(model.modules()):
        if isinstance(layer, Conv2d):
            strip(layer, fold=False)
    return model


def freeze_backbone(model: Network, norm: NormMode = "eval") -> Network:
    """Let only the similarities of `model` train, in place. Paper, §4.

    Args:
        model: A converted network.
        norm: "eval" holds normalisation at its running statistics in training mode too, so that
            the backbone stays the function that it was; "train" leaves it to the mode.

    Raises:
        ValueError: the network has no similarity, or `norm` is unknown.
    """
    if norm not in get_args(NormMode):
        raise ValueError(f'`norm` must be "eval" or "train", got {norm!r}')
    layers = [module for module in model.modules() if _has_similarity(module)]
    if not layers:
        raise ValueError(
            "`model` must have similarities to train, got a network without; convert it"
        )
    unfreeze_backbone(model).requires_grad_(False)
    for layer in layers:
        layer.get_submodule("similarity").requires_grad_(True)
    inside = {id(part) for layer in layers for part in layer.get_submodule("similarity").modules()}
    for module in model.modules():
        if norm == "eval" and id(module) not in inside and hasattr(module, "running_mean"):
            module.register_forward_pre_hook(_evaluate)
    return model


def unfreeze_backbone(model: Network) -> Network:
    """Let all of `model` train again, in place: `freeze_backbone` undone."""
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _evaluate:
                del module._forward_pre_hooks[key]
    return model.requires_grad_(True)


def _evaluate(module: nn.Module, _: Any) -> None:
    """Hook that keeps a normalisation at its running statistics, whatever mode it is set to."""
    module.training = False


def fold(model: Network, dynamic: OnDynamic = "error") -> Network:
    """A copy in which every static layer is a `torch.nn.Conv2d` that computes the same.

    Args:
        model: Any network.
        dynamic: What to do with dynamic layers, which no plain convolution equals: "error", or
            "keep" them as they are.

    Raises:
        ValueError: the network has dynamic layers and `dynamic` is "error".
    """
    if dynamic not in get_args(OnDynamic):
        raise ValueError(f'`dynamic` must be "error" or "keep", got {dynamic!r}')
    unfoldable = {
        name for name, m in model.named_modules() if _has_similarity(m) and not _static(m)
    }
    if unfoldable and dynamic == "error":
        raise ValueError(
            f"dynamic similarities cannot be folded, and these layers have one: "
            f"{', '.join(sorted(unfoldable))}; dynamic='keep' leaves them as they are"
        )
    model = deepcopy(model)
    for layer in list(model.modules()):
        if isinstance(layer, Conv2d) and (layer.similarity is None or _static(layer)):
            strip(layer, fold=True)
    return model


def _static(layer: nn.Module) -> bool:
    return isinstance(layer, Conv2d) and isinstance(layer.similarity, StaticSimilarity)


@torch.no_grad()
def max_difference(model: nn.Module, other: nn.Module, example: Tensor) -> float:
    """Largest absolute difference of the two networks' outputs on `example`, in evaluation mode.

    Their training flags are put back afterwards. Outputs must be single tensors of one shape.
    """
    outputs = [_evaluated(network, example) for network in (model, other)]
    if outputs[0].shape != outputs[1].shape:
        shapes = [tuple(output.shape) for output in outputs]
        raise ValueError(f"`model` and `other` must have outputs of one shape, got {shapes}")
    return (outputs[0] - outputs[1]).abs().max().item() if outputs[0].numel() else 0.0


def _evaluated(network: nn.Module, example: Tensor) -> Tensor:
    flags = {module: module.training for module in network.modules()}
    try:
        return network.eval()(example)
    finally:
        for module, training in flags.items():
            module.training = training


def parameter_groups(
    model: nn.Module, *, weight_decay: float, similarity_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Trainable parameters in groups for an optimiser, by how they decay.

    Kernels, biases, normalisation and predictors decay by `weight_decay`; static M by
    `similarity_decay`, towards the identity where the structure has a residual and towards zero
    where not; the gains of dynamic similarities and the masks of kernel shapes not at all. Empty
    groups are left out.
    """
    similarities: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, StaticSimilarity):
            similarities.append(module.raw)
        elif isinstance(module, DynamicSimilarity) and module.gain is not None:
            undecayed.append(module.gain)
        elif isinstance(module, MaskedModule):
            undecayed.append(module.mask)
    apart = {id(parameter) for parameter in similarities + undecayed}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in apart]
    groups = [
        ("weights", rest, weight_decay),
        ("similarities", similarities, similarity_decay),
        ("undecayed", undecayed, 0.0),
    ]
    trained = [(name, [p for p in ps if p.requires_grad], decay) for name, ps, decay in groups]
    return [{"name": n, "params": ps, "weight_decay": decay} for n, ps, decay in trained if ps]

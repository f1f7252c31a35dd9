"""Surgery on any network: put similarities in, take them out, fold them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from neural_similarity.nn import (
    Dynamic,
    DynamicSimilarity,
    Geometry,
    GlobalSimilarity,
    SelfAttention,
    SimilarityLayer,
    sharing,
)
from neural_similarity.nn.layer import (
    LAYERS,
    check_exact,
    check_ready,
    equip,
    geometry_of,
    has_similarity,
    is_dynamic,
    strip,
)
from neural_similarity.nn.modes import evaluating
from neural_similarity.nn.recurrent import lstm_geometries
from neural_similarity.nn.similarity import MOST_SCALARS, predicted_scalars, starts_at_identity
from neural_similarity.nn.text import Similarity, required_similarity

Network = TypeVar("Network", bound=nn.Module)
OnDynamic = Literal["error", "keep"]
NormMode = Literal["eval", "train"]
Kinds = tuple[type[nn.Module], ...]
Choose = Callable[[str, nn.Module], bool]
Choice = list[str] | Kinds | Choose
Where = str | type[nn.Module] | Collection[str] | Kinds | Choose

_READ = ("linear1", "linear2")


class _Unfit(str):
    """A reason that lies in the similarity, not in the layer."""


def convert(
    model: Network,
    similarity: Similarity | str,
    where: Where | None = None,
    inplace: bool = False,
) -> Network:
    """`model` with a similarity in its convolutions, and the same outputs until it is trained.

    Converts every module that is exactly a `torch.nn.Conv2d` with more than one kernel tap:
    parameters, hooks, dtype, device and training mode stay, and a module that stands in several
    places stays one module. `where` reaches torch's other layers that the library has with a
    similarity as well. A second call changes nothing; what `where` names must have none yet. `plan`
    tells what is skipped and why.

    A similarity is in the layer's `forward`: networks that read a layer's weight and do not call it
    (torchvision's Swin does so with `qkv` and `proj`) go on as if it were not there.

    Args:
        model: Any network; a copy is converted unless `inplace`.
        similarity: A name or spec that starts at the identity, see `ns.Conv2d`. A predictor that
            is a ready module serves a single layer.
        where: Name or names of the modules to convert, as in `model.named_modules()`, or a class or
            classes, such as `torch.nn.Linear`, or a function of (name, module) that tells whether
            to; by default all convolutions.
        inplace: Convert `model` itself; where that fails, it is as it was.

    Raises:
        ValueError: a module named in `where` is missing or cannot be converted, there is no layer
            to convert (and none with a similarity already), the similarity fits none or does not
            start at the identity in any of them, or a ready predictor would serve several. Errors
            of a single layer carry its name.
    """
    spec, where = _identity_start(similarity), _choice(where)
    reasons = _plan(model, spec, where)
    _check_plan(model, reasons, spec, where)
    model = model if inplace else _copy(model)
    layers = dict(model.named_modules(remove_duplicate=False))
    _equip_all({layers[name]: name for name, why in reasons.items() if why is None}, spec)
    return model


def _choice(where: Where | None) -> Choice | None:
    """`where` as names, classes or a function."""
    if where is None or (callable(where) and not isinstance(where, type)):
        return where
    one = isinstance(where, str | type) or not isinstance(where, Collection)
    parts = [where] if one else list(cast(Collection[Any], where))
    kinds = tuple(part for part in parts if isinstance(part, type))
    if kinds and len(kinds) == len(parts):
        return kinds
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(
            "`where` must be names of modules, classes, or a function of (name, module), "
            f"got {where!r}"
        )
    return cast(list[str], parts)


def _named(where: Choice | None) -> set[str]:
    """The names that `where` consists of."""
    return set(where) if isinstance(where, list) else set()


def _copy(model: Network) -> Network:
    """A deep copy in the same modes: torchvision's feature extractors copy into training mode."""
    try:
        copied = deepcopy(model)
    except RuntimeError as error:  # a tensor that a hook computed, as pruning's are until removed
        raise ValueError(
            f"`model` must be one that can be copied: {error}; convert and unconvert take "
            "inplace=True, and prune.remove makes what pruning computes a parameter"
        ) from error
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in copied.named_modules():
        if module.training != modes[name]:
            module.train(modes[name])
    return copied


def _equip_all(names: Mapping[nn.Module, str], spec: Similarity) -> None:
    """All layers equipped, or none where one fails."""
    kinds = {layer: type(layer) for layer in names}
    places: dict[tuple[torch.device, torch.dtype], list[nn.Module]] = {}
    for layer in names:
        parameter = next(layer.parameters())
        places.setdefault((parameter.device, parameter.dtype), []).append(layer)
    try:
        for layers in places.values():
            with sharing():
                for layer in layers:
                    _equip(layer, spec, names[layer])
    except Exception:
        for layer, kind in kinds.items():
            if isinstance(layer, SimilarityLayer):
                layer.similarity = None
                if kind in LAYERS:
                    strip(layer)
        raise


def _equip(layer: nn.Module, spec: Similarity, name: str) -> None:
    with _naming(name):
        similarity = equip(layer, spec).get_submodule("similarity")
        for part in similarity.modules():
            if isinstance(part, DynamicSimilarity):
                part.probe()


@contextmanager
def _naming(layer: str) -> Iterator[None]:
    """Errors as those of the layer of this name, if it has one in the model."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"layer {layer!r}: {error}" if layer else str(error)) from error


def _check_plan(
    model: nn.Module, reasons: Mapping[str, str | None], spec: Similarity, where: Choice | None
) -> None:
    """Raise a `ValueError` where a plan is not what was asked for."""
    refused = {name: reasons[name] for name in _named(where) if reasons[name]}
    if refused:
        raise ValueError(f"`where` names modules that cannot be converted: {refused}")
    chosen = {model.get_submodule(name): name for name, why in reasons.items() if why is None}
    unfit = {name: why for name, why in reasons.items() if isinstance(why, _Unfit)}
    if unfit and not chosen:
        raise ValueError(
            "`similarity` must fit a layer, and start at the identity to be converted to: "
            f"{_by_reason(unfit)}"
        )
    if not chosen and not _similarities(model):
        raise ValueError(
            "`model` must have a layer to convert, one that `where` chooses, got none: "
            f"{_by_reason(reasons) or 'no convolution; name layers of other kinds in `where`'}"
        )
    check_ready(spec, chosen.values())


def _by_reason(reasons: Mapping[str, str | None]) -> str:
    """Every reason once, with the first layers that it is given for."""
    layers: dict[str | None, list[str]] = {}
    for name, why in reasons.items():
        layers.setdefault(why, []).append(repr(name))
    return "; ".join(
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}: {why}"
        for why, names in layers.items()
    )


def plan(
    model: nn.Module, similarity: Similarity | str, where: Where | None = None
) -> dict[str, str | None]:
    """What `convert` does with each convolution: why it skips it, or None if it converts it.

    Raises:
        ValueError: `where` names what is no layer of the model that could have a similarity.
    """
    return _plan(model, _identity_start(similarity), _choice(where))


def _plan(model: nn.Module, spec: Similarity, where: Choice | None) -> dict[str, str | None]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` must be an nn.Module, got {model!r}")
    modules = dict(model.named_modules(remove_duplicate=False))
    names = _named(where)
    layers = {
        name: module
        for name, module in modules.items()
        if isinstance(module, _ConvNd) or name in names or _chosen(where, name, module)
    }
    missing = sorted(name for name in names if not isinstance(modules.get(name), tuple(LAYERS)))
    if missing:
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        raise ValueError(f"`where` must name layers of the model ({kinds}), got {missing}")
    inside = {part for similarity in _similarities(model) for part in similarity.modules()}
    return {
        name: _bypass(name, layer, modules, inside) or _reason(name, layer, spec, where)
        for name, layer in layers.items()
    }


def _bypass(
    name: str, layer: nn.Module, modules: Mapping[str, nn.Module], inside: Collection[nn.Module]
) -> str | None:
    """Why a layer's place in the network leaves no room for a similarity."""
    if layer in inside:
        return "is part of a similarity"
    parent, _, own = name.rpartition(".")
    if own in _READ and isinstance(modules[parent], nn.TransformerEncoderLayer):
        return "is in a TransformerEncoderLayer, which in evaluation reads its weight alone"
    return None


def _is_exact(layer: nn.Module) -> bool:
    """Whether a layer's class is one of torch's that has one of ours, or is one of ours."""
    return type(layer) in {*LAYERS, *LAYERS.values()}


def _chosen(where: Choice | None, name: str, module: nn.Module) -> bool:
    """Whether `where` asks for a module."""
    if where is None:
        return type(module) in (nn.Conv2d, LAYERS[nn.Conv2d])
    if isinstance(where, tuple):
        return isinstance(module, tuple(LAYERS)) and isinstance(module, where)
    return name in where if isinstance(where, list) else _is_exact(module) and where(name, module)


def _reason(name: str, layer: nn.Module, spec: Similarity, where: Choice | None) -> str | None:
    """Why a layer is not converted."""
    if "forward" in vars(layer):
        return "has a forward of its own (accelerate's hooks do that); convert it before"
    chosen = _chosen(where, name, layer)
    if where is not None and not chosen:
        return f"is not {'named in' if isinstance(where, list) else 'chosen by'} `where`"
    if has_similarity(layer):
        return "has a similarity already"
    if isinstance(layer, nn.ConvTranspose2d) and isinstance(spec, Dynamic):
        return "is a transposed convolution, whose similarity is static"
    if type(layer) in LAYERS and not chosen:
        return f"is a {type(layer).__name__}; name it in `where` to have it converted too"
    if not chosen or not _is_exact(layer):
        mend = "; remove its parametrizations" if parametrize.is_parametrized(layer) else ""
        return f"is a {type(layer).__name__}, not exactly a torch.nn.{_nearest(layer, where)}{mend}"
    if isinstance(layer, nn.LSTM) and (layer.bidirectional or layer.proj_size):
        return "is an LSTM with two directions or a projection"
    geometries = lstm_geometries(layer).values() if isinstance(layer, nn.LSTM) else ()
    return _misfit(list(geometries) or [geometry_of(layer)], spec, where)


def _nearest(layer: nn.Module, where: Choice | None) -> str:
    """The class of torch's that a layer would have to be of."""
    kinds = (nn.Conv2d,) if where is None else LAYERS
    return next((kind for kind in kinds if isinstance(layer, kind)), nn.Conv2d).__name__


def _misfit(geometries: list[Geometry], spec: Similarity, where: Choice | None) -> str | None:
    """Why a similarity does not fit a layer whose parts have these geometries."""
    if all(geometry.taps == 1 for geometry in geometries):
        return "has a single kernel tap"
    try:
        predicted = max(predicted_scalars(spec, geometry) for geometry in geometries)
        strangers = [g.taps for g in geometries if not starts_at_identity(spec, g)]
    except ValueError as error:
        return _Unfit(f"does not fit: {error}")
    if strangers:
        return _Unfit(f"does not start at the identity: {spec.structure!r} of {strangers[0]} taps")
    if predicted > MOST_SCALARS and where is None:
        return f"would predict {predicted} numbers per position; name it in `where` to have that"
    return None


def _similarities(model: nn.Module) -> list[nn.Module]:
    """The similarities of a network: those of its layers, and those of whole maps."""
    layers = [module for module in model.modules() if has_similarity(module)]
    whole = [m for m in model.modules() if isinstance(m, GlobalSimilarity | SelfAttention)]
    return [layer.get_submodule("similarity") for layer in layers] + whole


def _identity_start(similarity: Similarity | str) -> Similarity:
    spec = required_similarity(similarity)
    if spec.init != "identity":
        raise ValueError(f"`similarity` must start at the identity to be converted to, got {spec}")
    return spec


def unconvert(model: Network, inplace: bool = False) -> Network:
    """`model` with its similarities dropped: the plain network with the kernels it has now.

    What `freeze_backbone` holds is let go; which parameters are trained stays.

    Raises:
        ValueError: a layer is of another class than ours, as with a parametrization.
    """
    model = model if inplace else _copy(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, SimilarityLayer)}
    for name, layer in layers.items():
        with _naming(name):
            check_exact(layer)
    for layer in layers.values():
        strip(layer)
    _let_go(model)
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
    similarities = _similarities(model)
    if not similarities:
        raise ValueError(
            "`model` must have similarities to train, got a network without; convert it"
        )
    unfreeze_backbone(model).requires_grad_(False)
    for similarity in similarities:
        similarity.requires_grad_(True)
    inside = {part for similarity in similarities for part in similarity.modules()}
    for module in model.modules():
        if norm == "eval" and module not in inside and hasattr(module, "running_mean"):
            held = _Held()
            module.register_forward_pre_hook(held.before)
            module.register_forward_hook(held.after, always_call=True)
    return model


def unfreeze_backbone(model: Network) -> Network:
    """Let all of `model` train again, in place: `freeze_backbone` undone."""
    _let_go(model)
    return model.requires_grad_(True)


def _let_go(model: nn.Module) -> None:
    """Remove the hooks of `freeze_backbone`."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", None), _Held):
                    del hooks[key]


class _Held:
    """Hooks that let a normalisation use its running statistics, whatever mode it is in."""

    def before(self, module: nn.Module, _: Any) -> None:
        self._training = module.training
        module.training = False

    def after(self, module: nn.Module, _input: Any, _output: Any) -> None:
        module.training = self._training


def fold(model: Network, dynamic: OnDynamic = "error") -> Network:
    """A copy in which every static layer is torch's own and computes the same.

    Selections and shifts become smaller layers still, see `ns.Conv2d.fold`. Normalisation that
    `freeze_backbone` holds stays held, for what is kept; `unfreeze_backbone` lets it go.

    Args:
        model: Any network.
        dynamic: What to do with dynamic layers, which no plain convolution equals: "error", or
            "keep" them as they are.

    Raises:
        ValueError: the network has dynamic layers and `dynamic` is "error", or a layer cannot be
            folded, which carries its name, see `ns.Conv2d.fold`.
    """
    if dynamic not in get_args(OnDynamic):
        raise ValueError(f'`dynamic` must be "error" or "keep", got {dynamic!r}')
    unfoldable = {name for name, module in model.named_modules() if is_dynamic(module)}
    if unfoldable and dynamic == "error":
        raise ValueError(
            f"dynamic similarities cannot be folded, and these layers have one: "
            f"{', '.join(sorted(unfoldable))}; dynamic='keep' leaves them as they are"
        )
    model = _copy(model)
    folded: dict[nn.Module, nn.Module] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, SimilarityLayer) or is_dynamic(layer):
            plain = folded.get(layer)
        else:
            with _naming(name):
                plain = folded[layer] = layer.fold()
        if plain is not None and plain is not layer:
            if not name:
                return cast(Network, plain)
            model.set_submodule(name, plain)
    return model


@torch.no_grad()
def max_difference(model: nn.Module, other: nn.Module, example: Tensor) -> float:
    """Largest absolute difference of the two networks' outputs on `example`, in evaluation mode.

    Outputs are tensors, or mappings and sequences of such. Every module is in its mode again
    afterwards.

    Raises:
        ValueError: the outputs are something else, or not of the same shapes.
    """
    with evaluating(model, other):
        ours, theirs = (list(_tensors(network(example))) for network in (model, other))
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"`model` and `other` must have outputs of the same shapes, got {shapes}")
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.numel()]
    return max(((a - b).abs().max().item() for a, b in pairs), default=0.0)


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors of an output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part)
    else:
        raise ValueError(
            f"`model` and `other` must output tensors, or mappings and sequences of them, got "
            f"{type(output).__name__}"
        )

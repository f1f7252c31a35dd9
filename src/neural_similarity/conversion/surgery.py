"""Putting similarities into a network, taking them out, folding them; comparing two networks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from neural_similarity.choices import require_flag
from neural_similarity.conversion.adapter_saving import restore_saving, save_both
from neural_similarity.conversion.backbone_state import forget_states, remember_state
from neural_similarity.conversion.freezing import AnyNetwork, remove_norm_hooks, similarities_of
from neural_similarity.conversion.planning import check_plan, identity_start, make_plan
from neural_similarity.conversion.where import Where, choice_of, plain_modules
from neural_similarity.nn import DynamicSimilarity, SimilarityLayer, sharing
from neural_similarity.nn.layer import equip_layer, is_dynamic
from neural_similarity.nn.modes import check_module, evaluation_mode
from neural_similarity.nn.own_forward import settle_weights
from neural_similarity.nn.text import Similarity, SimilarityName
from neural_similarity.ops import require_tensors


@contextmanager
def whole_or_nothing(model: nn.Module) -> Iterator[None]:
    """Restore class and attributes of every module if the block fails or is interrupted.

    Tensors are put back as the objects that they were, with their `requires_grad`; the block may
    not write into them.
    """
    before = [(module, type(module), _attributes(module)) for module in model.modules()]
    learned = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            module.__class__ = kind
            vars(module).clear()
            for name, (value, items) in attributes.items():
                if items is not None:  # The dict stays the same: handles of hooks refer to it.
                    value.clear()
                    value.update(items)
                vars(module)[name] = value
        for parameter, requires_grad in learned:
            parameter.requires_grad = requires_grad
        raise


def _attributes(module: nn.Module) -> dict[str, tuple[Any, dict[Any, Any] | None]]:
    """The attributes of a module, and the items of those that are dicts (parameters, hooks)."""
    return {
        name: (value, dict(value) if isinstance(value, dict) else None)
        for name, value in vars(module).items()
    }


@torch.no_grad()
def max_difference(model: nn.Module, other: nn.Module, example: Tensor) -> float:
    """Largest absolute difference between two networks' outputs on `example`, in evaluation mode.

    Outputs are tensors, or mappings and sequences of tensors; None in these is skipped, and
    mappings are compared key by key. Equal infinite values do not differ. Modes are restored
    afterwards.

    Returns:
        The largest absolute difference of their outputs.

    Raises:
        ValueError: the outputs are something else, or not of the same shapes or keys.
    """
    for name, network in (("model", model), ("other", other)):
        check_module(network, name)
    require_tensors(example=example)
    with evaluation_mode(model, other):
        outputs = [network(example) for network in (model, other)]
    _check_keys(*outputs)
    ours, theirs = (list(_output_tensors(output)) for output in outputs)
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"`model` and `other` must have outputs of the same shapes, got {shapes}")
    pairs = [map(_double_on_host, pair) for pair in zip(ours, theirs, strict=True)]
    largest = [(a - b).abs().where(a != b, 0).max() for a, b in pairs if a.numel()]
    return torch.stack(largest).max().item() if largest else 0.0


def _double_on_host(output: Tensor) -> Tensor:
    """A tensor on the host, in double precision, complex or not."""
    return output.cpu().to(torch.promote_types(output.dtype, torch.float64))


def _check_keys(ours: Any, theirs: Any) -> None:
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return
    if ours.keys() != theirs.keys():
        raise ValueError(
            "`model` and `other` must have outputs of the same keys, got "
            f"{list(ours)} and {list(theirs)}"
        )


def _output_tensors(output: Any) -> Iterator[Tensor]:
    """All tensors of an output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _output_tensors([output[key] for key in sorted(output, key=str)])
    elif isinstance(output, list | tuple):
        for part in output:
            if part is not None:
                yield from _output_tensors(part)
    else:
        raise ValueError(
            f"`model` and `other` must output tensors, or mappings and sequences of them, got "
            f"{type(output).__name__}"
        )


OnDynamic = Literal["error", "keep"]


def convert(
    model: AnyNetwork,
    similarity: Similarity | SimilarityName,
    where: Where | None = None,
    inplace: bool = False,
) -> AnyNetwork:
    """Add a similarity to the convolutions of `model`; outputs stay the same until it trains.

    Converts every `torch.nn.Conv1d`, `Conv2d` and `Conv3d` with more than one kernel tap:
    parameters, hooks, dtype, device and training mode stay, and a module that is used in several
    places stays one module. `where` selects torch's other layers, too, for which the library has a
    counterpart. A second call changes nothing; modules named in `where` must have no similarity
    yet. `plan` lists what is skipped and why.

    Subclasses of these convolutions may have a `forward` of their own that calls torch's
    convolution once, such as timm's Conv2dSame and StdConv2d: M acts on the kernel of that call,
    also behind `weight_norm`. `unconvert` and `fold` restore their class. But if
    `forward` computes or writes the kernel (a mask, a maximal norm), `fold` makes a plain layer
    with that kernel.

    A similarity acts in the layer's `forward`: networks that read a layer's weight without calling
    it (torchvision's Swin does so with `qkv` and `proj`) ignore the similarity.

    Args:
        model: Any network; a copy is converted unless `inplace`.
        similarity: A name or spec that starts at the identity, see `ns.Conv2d`. A predictor that
            is a ready module serves a single layer.
        where: Name or names of the modules to convert, as in `model.named_modules()` before the
            network was compiled or wrapped, globs among them ("layer4.*": whatever fits and can be
            converted), or a class or classes, such as `torch.nn.Linear`, or a function of
            (name, module) that decides; by default all convolutions. A class of other layers that
            overrides no more than `__init__` of torch's is converted if it is named itself, and
            `fold` returns torch's class.
        inplace: Convert `model` itself; if that fails, it is left unchanged.

    Returns:
        The converted copy of `model`, or `model` itself if `inplace`.

    Raises:
        ValueError: a module named in `where` is missing or cannot be converted, a glob fits no
            layer, there is no layer to convert (and none with a similarity already), the similarity
            fits none or does not start at the identity in any of them, or a ready predictor would
            serve several. Errors of a single layer carry its name.
    """
    require_flag("inplace", inplace)
    spec, where = identity_start(similarity), choice_of(where)
    reasons = make_plan(model, spec, where)
    check_plan(model, reasons, spec, where)
    model = model if inplace else copy_in_modes(model)
    layers = plain_modules(model, remove_duplicate=False)
    with whole_or_nothing(model):
        if not similarities_of(model):
            forget_states(model)
            settle_weights(model)
        _equip_all({layers[name]: name for name, why in reasons.items() if why is None}, spec)
        remember_state(model, similarities_of(model))
        save_both(model)
    return model


def unconvert(model: AnyNetwork, inplace: bool = False) -> AnyNetwork:
    """Remove the similarities: the plain network with the kernels as they are, without M.

    Normalisation that `freeze_backbone` holds is released; `requires_grad` does not change.

    Returns:
        The network without similarities: a copy, unless `inplace`.

    Raises:
        ValueError: a layer is of another class than ours, as with a parametrization.
    """
    check_module(model)
    require_flag("inplace", inplace)
    model = model if inplace else copy_in_modes(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, SimilarityLayer)}
    with whole_or_nothing(model):
        for name, layer in layers.items():
            with _errors_of_layer(name):
                layer.without_similarity()
        _clean(model)
    return model


def fold(model: AnyNetwork, dynamic: OnDynamic = "error") -> AnyNetwork:
    """Fold every static M into its kernel: a copy with torch's own layers and the same outputs.

    Use it for inference: unfolded, a layer multiplies M into its kernel at every call.
    Normalisation that `freeze_backbone` holds is released if no similarity is left. A full M mixes
    taps, so that pruned kernels lose their zeros: prune after folding. Quantise and wrap (PEFT)
    after folding, too, since those tools read the kernel without M.

    Args:
        model: Any network.
        dynamic: What to do with dynamic layers, which no plain convolution equals: "error", or
            "keep" them as they are.

    Returns:
        A copy of `model` in which static layers are torch's own, with M in their kernels.

    Raises:
        ValueError: the network has dynamic layers and `dynamic` is "error", or a layer, which the
            error names, cannot be folded, see `ns.Conv2d.fold`.
    """
    if dynamic not in get_args(OnDynamic):
        raise ValueError(f'`dynamic` must be "error" or "keep", got {dynamic!r}')
    check_module(model)
    unfoldable = {name for name, module in model.named_modules() if is_dynamic(module)}
    if unfoldable and dynamic == "error":
        names = ", ".join(name or "the model itself" for name in sorted(unfoldable))
        raise ValueError(
            f"layers with a dynamic similarity cannot be folded, got {names}; "
            f"dynamic='keep' leaves them as they are"
        )
    model = copy_in_modes(model)
    folded: dict[nn.Module, nn.Module] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, SimilarityLayer) or is_dynamic(layer):
            plain = folded.get(layer)
        else:
            with _errors_of_layer(name):
                plain = folded[layer] = layer.fold()
        if plain is not None and plain is not layer:
            if not name:
                _clean(plain)
                return cast(AnyNetwork, plain)
            model.set_submodule(name, plain)
    if not similarities_of(model):
        _clean(model)
    return model


def _clean(model: nn.Module) -> None:
    """Remove all that conversion and freezing left on a network besides similarities."""
    remove_norm_hooks(model)
    forget_states(model)
    restore_saving(model)


def copy_in_modes(model: AnyNetwork) -> AnyNetwork:
    """A deep copy in the same modes: torchvision's feature extractors copy into training mode."""
    # What hooks computed, as weight_norm's and pruning's do at every call, torch does not copy.
    tensors = [t for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    computed = {id(t): t.detach().clone() for t in tensors if not t.is_leaf}
    try:
        copied = deepcopy(model, computed)
    except RuntimeError as error:  # a tensor that was computed, elsewhere
        raise ValueError(
            f"`model` must allow a deep copy: {error}; convert and unconvert take inplace=True"
        ) from error
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in copied.named_modules():
        if module.training != modes[name]:
            module.train(modes[name])
    return copied


def _equip_all(names: Mapping[nn.Module, str], spec: Similarity) -> None:
    """Equip all layers; those of one device and type share predictors by one `sharing`."""
    places: dict[tuple[torch.device, torch.dtype], list[nn.Module]] = {}
    for layer in names:
        parameter = next(layer.parameters())
        places.setdefault((parameter.device, parameter.dtype), []).append(layer)
    for layers in places.values():
        with sharing():
            for layer in layers:
                _equip_layer(layer, spec, names[layer])


def _equip_layer(layer: nn.Module, spec: Similarity, name: str) -> None:
    with _errors_of_layer(name):
        similarity = equip_layer(layer, spec).get_submodule("similarity")
        for part in similarity.modules():
            if isinstance(part, DynamicSimilarity):
                part.check_predictor()


@contextmanager
def _errors_of_layer(layer: str) -> Iterator[None]:
    """Add the name of a layer to its errors."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"layer {layer!r}: {error}" if layer else str(error)) from error

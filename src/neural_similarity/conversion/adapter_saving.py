"""Saving what a network learned: by `save_adapter`, or beside a `save_pretrained`."""

import logging
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from neural_similarity.conversion.adapter_file import (
    AdapterFile,
    build_on_meta,
    check_finite,
    exact_cast,
    without_keys,
    write_adapter_file,
)
from neural_similarity.conversion.backbone_state import (
    is_frozen,
    is_trained,
    may_have_moved,
    state_digests,
)
from neural_similarity.conversion.freezing import similarities_of
from neural_similarity.conversion.where import (
    Parts,
    plain_modules,
    plain_state,
    select_tensors,
    unwrap_model,
)
from neural_similarity.files import remove_file
from neural_similarity.nn import SimilarityLayer, format_similarity
from neural_similarity.nn.layer import has_similarity
from neural_similarity.nn.modes import check_module, first_parameter

File = str | Path
log = logging.getLogger(__name__)
ADAPTER = "adapter.safetensors"
_METHOD = "save_pretrained"
_ADVICE = {
    "convert": "ns.freeze_backbone before training says what trains, and all else is the backbone",
    "freeze_backbone": "ns.freeze_backbone again makes them the backbone, as they are now",
}
"""What to do about tensors that are not as this function saw them."""


def save_adapter(model: nn.Module, path: File, extra: Parts = ()) -> Path:
    """Write what a converted network learned into one file.

    The safetensors file holds the state of the similarities, with predictors and their statistics,
    the complete text of each, the parameters that `freeze_backbone` left trainable, with
    `norm="train"` the running statistics, the tensors that `extra` names, and digests of all else:
    the backbone, which is not written. Its size is logged (INFO): kilobytes, if M is static. A
    network inside `torch.compile`, DistributedDataParallel and the like gives the same file.

    The backbone is the network as `freeze_backbone` saw it, or `convert` if that was not called. If
    anything in it has changed since, as buffers do in training mode, nothing is written. In a
    frozen network, `load_state_dict` sets a new backbone, and tensors that were cast to another
    type are not compared.

    Args:
        model: A converted network, see `convert`.
        path: Path of the file; its folder is created.
        extra: What else was trained or estimated: names or globs of modules, parameters and
            buffers, or modules ("fc", "*.bn?", "*running*").

    Returns:
        The path of the file.

    Raises:
        ValueError: the network has no similarity and `extra` is empty, or it has one that is not
            made of the library's own parts alone (the message has the layer's name), or `extra`
            names what is not there; the backbone has moved, and `extra` does not cover it; a value
            to be written is NaN or infinite.
    """
    check_module(model)
    model = unwrap_model(model)
    if not similarities_of(model) and not extra:
        raise ValueError("`model` must have similarities to save, got a network without any")
    extras = select_tensors(model, extra, "extra")
    # Outside similarities, what `freeze_backbone` left trainable or an adapter brought.
    owners, state = _owners(model), plain_state(model)
    trained = {key: t for key, t in state.items() if key in owners and is_trained(*owners[key])}
    tensors = {**learned_state(model), **trained, **extras}
    _check_rest(owners, without_keys(state, tensors))
    return write_adapter(model, path, tensors)


def write_adapter(model: nn.Module, path: File, tensors: Mapping[str, Tensor]) -> Path:
    """Write these tensors of a network, the texts of its similarities, and digests of all else."""
    modules = plain_modules(model).items()
    layers = {n: cast(SimilarityLayer, m) for n, m in modules if has_similarity(m)}
    texts = {name: _similarity_text(name, layer) for name, layer in layers.items()}
    for key, tensor in tensors.items():
        check_finite(key, tensor)
    for name, layer in layers.items():
        _check_types(name, layer)
    state = plain_state(model)
    tensors = {key: tensor for key, tensor in state.items() if key in tensors}
    size = write_adapter_file(
        Path(path), AdapterFile(texts, tensors, state_digests(without_keys(state, tensors)))
    )
    count = sum(tensor.numel() for tensor in {id(t): t for t in tensors.values()}.values())
    log.info("%s: %.1f kB, %s numbers", path, size / 1000, f"{count:,}")
    return Path(path)


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a network's similarities, in the network's names."""
    similarities = similarities_of(model)
    prefixes = tuple(
        f"{name}.".removeprefix(".")
        for name, part in plain_modules(model).items()
        if part in similarities
    )
    return {key: tensor for key, tensor in plain_state(model).items() if key.startswith(prefixes)}


def _check_rest(owners: Mapping[str, tuple[nn.Module, str]], rest: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` where something that is not kept has changed since it was seen."""
    moved = [
        key
        for key in rest
        if not key.endswith("num_batches_tracked")
        and (key not in owners or may_have_moved(*owners[key]))
    ]
    if moved:
        more = f" and {len(moved) - 3} more" if moved[3:] else ""
        seen = "freeze_backbone" if any(is_frozen(m) for m, _ in owners.values()) else "convert"
        raise ValueError(
            "`extra` must name what was trained or estimated besides M; it leaves out tensors "
            f"that are not as ns.{seen} saw them: {', '.join(moved[:3])}{more}. {_ADVICE[seen]}"
        )


def _owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """The module that every tensor of a state dict is in, with its name there."""
    return {
        f"{prefix}.{name}" if prefix else name: (module, name)
        for prefix, module in plain_modules(model, remove_duplicate=False).items()
        for name in (*module._parameters, *module._buffers)
    }


def _check_types(name: str, layer: SimilarityLayer) -> None:
    """Check that the layer's type, which a loaded similarity gets, holds this one's values."""
    dtype = first_parameter(layer).dtype
    for key, tensor in layer.get_submodule("similarity").state_dict().items():
        if tensor.is_floating_point():
            try:
                exact_cast(f"{name}.similarity.{key}", tensor, dtype)
            except ValueError as error:
                raise ValueError(f"{error}; round M first, as by `.to({dtype})`") from error


def _similarity_text(name: str, layer: SimilarityLayer) -> str:
    """The complete text of a layer's similarity; one built from it has the same state."""
    try:
        part = next(iter(layer.similarities().values()))
        if (spec := getattr(part, "spec", None)) is None:
            raise ValueError(f"`similarity` must come from a spec to be stored, got {part}")
        text = format_similarity(spec, complete=True)
        keys = [
            list(part.state_dict())
            for part in (build_on_meta(layer, text), layer.similarity)
            if part
        ]
        if keys[0] != keys[1]:
            raise ValueError(
                f"`similarity` must have {keys[0]} to be stored, got {keys[1]}; remove "
                "parametrizations and pruning first"
            )
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error
    return text


def save_both(model: nn.Module) -> None:
    """Let `save_pretrained` of a network and of its parts write an adapter, too.

    That of transformers and diffusers is meant. Their `from_pretrained` builds the plain network
    and drops the tensors of M; a strict one refuses them. Refusing to save would end a Trainer's
    run at its first checkpoint. So the same files are written as before, and beside them an adapter
    for the network that `from_pretrained` returns.
    """
    for module in model.modules():
        if callable(getattr(type(module), _METHOD, None)):
            setattr(module, _METHOD, partial(_save_pretrained, module))


def restore_saving(model: nn.Module) -> None:
    """Undo `save_both`."""
    for module in model.modules():
        vars(module).pop(_METHOD, None)


def _save_pretrained(
    model: Any, save_directory: str | PathLike[str], *args: Any, **options: Any
) -> Any:
    result = type(model).save_pretrained(model, save_directory, *args, **options)
    writes = args[0] if args else options.get("is_main_process", True)
    if (tensors := learned_state(model)) and writes:
        file = Path(save_directory, ADAPTER)
        try:
            write_adapter(model, file, tensors)
        except ValueError as error:  # The weights are written: better no adapter than no run.
            remove_file(file)  # An earlier one would put an older M on these weights.
            log.warning("%s has M in its weights alone: %s", save_directory, error)
        else:
            log.warning(
                "from_pretrained(%r) drops M, or refuses its tensors unless strict=False; "
                "ns.load_adapter(of that, %r) puts it back. ns.fold before saving needs neither",
                str(save_directory), str(file),
            )  # fmt: skip
    return result

"""PEFT's adapters to and from the files of `ns.save_adapter`."""

from collections.abc import Container
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from peft import PeftModel, get_peft_model
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils import ModulesToSaveWrapper
from torch import nn

from neural_similarity.conversion import freeze_backbone, save_adapter
from neural_similarity.conversion.adapter_file import Adapter, adapter_of
from neural_similarity.conversion.adapter_saving import File
from neural_similarity.conversion.freezing import layers_of_word
from neural_similarity.conversion.surgery import whole_or_nothing
from neural_similarity.conversion.where import (
    plain_modules,
    plain_name,
    plain_state,
    unwrap_model,
)
from neural_similarity.nn import StaticSimilarity, format_similarity
from neural_similarity.nn.layer import become_ours
from neural_similarity.peft.config import NSL, NslConfig
from neural_similarity.peft.nsl_layer import exact_pattern, nsl_layers


def export_adapter(model: nn.Module, path: File) -> Path:
    """Write the active adapter of a network as `ns.save_adapter` writes a converted network's.

    `ns.load_adapter` puts it on the backbone without PEFT.

    Args:
        model: A network from `peft.get_peft_model` with an `NslConfig`.
        path: Path of the file; its folder is created.

    Returns:
        The path of the file.

    Raises:
        ValueError: not exactly one adapter is active, or it is merged, or it is not of an
            `NslConfig`, or as `ns.save_adapter`.
    """
    core = unwrap_model(model)
    if not (isinstance(core, PeftModel) and core.peft_type == NSL):
        raise ValueError(
            f"`model` must be a network of PEFT's with NslConfig, got a {type(core).__name__}"
        )
    return _export(core, path)


def _export(model: PeftModel, path: File) -> Path:
    active = model.active_adapters
    core = cast(nn.Module, model.get_base_model())
    if len(active) != 1 or any(layer.merged for layer in nsl_layers(core).values()):
        raise ValueError(f"`model` must have one active adapter, not merged, got {active}")
    copied = deepcopy(model)
    core = cast(nn.Module, copied.get_base_model())
    layers = nsl_layers(core)
    similarities = {
        name: layer.nsl_similarity[active[0]]
        for name, layer in layers.items()
        if layer.adapters_here(active)
    }
    saved = [
        plain_name(name)
        for name, part in core.named_modules()
        if isinstance(part, ModulesToSaveWrapper) and active[0] in part.modules_to_save
    ]
    trained = {n: x.nsl_layer[active[0]] for n, x in layers.items() if active[0] in x.nsl_layer}
    plain = cast(nn.Module, copied.unload())
    for name, layer in trained.items():
        plain.get_submodule(name).load_state_dict(layer.state_dict())
        saved += [f"{plain_name(name)}.{key}" for key in layer.state_dict()]
    kinds = {cast(NslConfig, config).bias for config in model.peft_config.values()}
    saved += _trained_biases(plain, {plain_name(name) for name in layers}, kinds)
    for name, similarity in similarities.items():
        become_ours(plain.get_submodule(name)).similarity = similarity
    return save_adapter(freeze_backbone(plain, train=()), path, saved)


def _trained_biases(model: nn.Module, layers: Container[str], kinds: Container[str]) -> list[str]:
    """The biases of the backbone that PEFT let train, for these kinds of `bias` in adapters."""
    owners = {
        key: key.rpartition(".")[0] for key in plain_state(model) if key.split(".")[-1] == "bias"
    }
    if "all" in kinds:
        return list(owners)
    return [key for key, owner in owners.items() if "nsl_only" in kinds and owner in layers]


def import_adapter(backbone: nn.Module, path: File, adapter_name: str = "default") -> PeftModel:
    """Wrap a backbone by PEFT, with an adapter that `ns.save_adapter` wrote.

    What the file holds besides M becomes `modules_to_save`. If it fails, the backbone is left
    unchanged.

    Returns:
        The PEFT model, with the adapter active.

    Raises:
        ValueError: as `ns.load_adapter`, or PEFT cannot hold what the file does: several
            similarities, tensors of a converted layer, of a module around one or of the network
            itself, modules whose name is the end of another's, or a head of other outputs.
        FileNotFoundError: there is no such file.
    """
    adapter = adapter_of(backbone, Path(path))
    config = _config_for(backbone, adapter, path)
    with whole_or_nothing(backbone):
        model = cast(PeftModel, get_peft_model(backbone, config, adapter_name))
        modules = cast(dict[str, Any], plain_modules(backbone, remove_duplicate=False))
        for name, part in adapter.similarities.items():
            modules[name].nsl_similarity[adapter_name].load_state_dict(part.state_dict())
        for name in {*config.trained, *(config.modules_to_save or ())}:
            part = "nsl_layer" if name in adapter.similarities else "modules_to_save"
            for key, tensor in plain_state(modules[name].get_submodule(part)[adapter_name]).items():
                if (value := adapter.values.get(f"{name}.{key}")) is not None:
                    tensor.data.copy_(value)
    return model


def _config_for(backbone: nn.Module, adapter: Adapter, path: File) -> NslConfig:
    """The configuration of an adapter, after a check that PEFT holds all of it."""
    texts = {
        format_similarity(cast(StaticSimilarity, part).spec, complete=True)
        for part in adapter.similarities.values()
    }
    state = plain_state(backbone)
    owners = {key.rpartition(".")[0] for key in adapter.values}
    train = _trained_words(backbone, adapter, owners)
    if len(texts) != 1 or "" in owners or train is None:
        raise ValueError(
            f"{path} must hold one similarity, and else modules without one, or all, got "
            f"{', '.join(texts)} and {sorted(owners)}"
        )
    owners -= adapter.similarities.keys()
    resized = [key for key, value in adapter.values.items() if value.shape != state[key].shape]
    if resized:
        raise ValueError(
            f"{path} must hold tensors with the shapes of the backbone's, which PEFT keeps, got "
            f"others for {resized}; give the backbone the same head"
        )
    owners = {owner for owner in owners if not owner.startswith(tuple(f"{o}." for o in owners))}
    config = NslConfig(
        target_modules=exact_pattern(adapter.similarities), similarity=texts.pop(), train=train,
        modules_to_save=sorted(owners) or None,
    )  # fmt: skip
    names = [name for name, _ in backbone.named_modules(remove_duplicate=False)]
    taken = {plain_name(name) for name in names if name.endswith(tuple(owners))}
    lost = [name for name in adapter.similarities if not check_target_module_exists(config, name)]
    wrong = {"takes": taken - owners, "does not find": owners - taken, "gives no M to": lost}
    if any(wrong.values()):
        problems = "; ".join(f"{what} {sorted(those)}" for what, those in wrong.items() if those)
        raise ValueError(
            f"{path} must hold modules that `modules_to_save` can name by their ends, got "
            f"{sorted(owners)}: by these PEFT {problems}"
        )
    return config


def _trained_words(backbone: nn.Module, adapter: Adapter, owners: set[str]) -> str | None:
    """`train` of an adapter that has the kernels of these layers; None where no word names them."""
    layers, similar = plain_modules(backbone), adapter.similarities.keys()
    if not owners & similar:
        return "M"
    for word in ("head", "all"):
        named = similar & layers_of_word(layers, word)
        keys = {f"{name}.{key}" for name in named for key in layers[name].state_dict()}
        if named == owners & similar and keys <= adapter.values.keys():
            return f"M+{word}"
    return None

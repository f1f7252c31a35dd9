"""PEFT's adapters to and from the files of `ns.save_adapter`."""

from copy import deepcopy
from pathlib import Path
from typing import cast

from peft import PeftModel, get_peft_model
from peft.utils import ModulesToSaveWrapper
from torch import nn

from neural_similarity.conversion import freeze_backbone, save_adapter
from neural_similarity.conversion.adapter_loading import adapter_of
from neural_similarity.conversion.adapter_saving import File
from neural_similarity.nn import StaticSimilarity, format_similarity
from neural_similarity.nn.layer import become_ours
from neural_similarity.peft.config import NslConfig
from neural_similarity.peft.tuner import exact_pattern, nsl_layers


def export_adapter(model: PeftModel, path: File) -> Path:
    """Write the active adapter of a network as `ns.save_adapter` writes a converted network's.

    `ns.load_adapter` puts it on the backbone without PEFT.

    Args:
        model: A network from `peft.get_peft_model` with an `NslConfig`.
        path: Path of the file; its folder is created.

    Raises:
        ValueError: not exactly one adapter is active, or it is merged, or as `ns.save_adapter`.
    """
    active = model.active_adapters
    core = cast(nn.Module, model.get_base_model())
    if len(active) != 1 or any(layer.merged for layer in nsl_layers(core).values()):
        raise ValueError(f"`model` must have one active adapter, not merged, got {active}")
    copied = deepcopy(model)
    core = cast(nn.Module, copied.get_base_model())
    similarities = {
        name: layer.nsl_similarity[active[0]]
        for name, layer in nsl_layers(core).items()
        if layer.adapters_here(active)
    }
    saved = [
        name
        for name, part in core.named_modules()
        if isinstance(part, ModulesToSaveWrapper) and active[0] in part.modules_to_save
    ]
    plain = cast(nn.Module, copied.unload())
    for name, similarity in similarities.items():
        become_ours(plain.get_submodule(name)).similarity = similarity
    return save_adapter(freeze_backbone(plain, train=()), path, saved)


def import_adapter(backbone: nn.Module, path: File, adapter_name: str = "default") -> PeftModel:
    """A backbone that PEFT wraps, with an adapter that `ns.save_adapter` wrote.

    What the file holds besides M becomes `modules_to_save`.

    Raises:
        ValueError: as `ns.load_adapter`, or the file has several similarities, or it holds tensors
            of a converted layer or of the network itself, which PEFT cannot save.
        FileNotFoundError: there is no such file.
    """
    adapter = adapter_of(backbone, Path(path))
    texts = {
        format_similarity(cast(StaticSimilarity, part).spec, complete=True)
        for part in adapter.similarities.values()
    }
    owners = {key.rpartition(".")[0] for key in adapter.values}
    if len(texts) != 1 or owners & {"", *adapter.similarities}:
        raise ValueError(
            f"{path} must hold one similarity, and else modules without one, got "
            f"{', '.join(texts)} and {sorted(owners)}"
        )
    config = NslConfig(
        target_modules=exact_pattern(adapter.similarities), similarity=texts.pop(),
        modules_to_save=sorted(owners) or None,
    )  # fmt: skip
    model = cast(PeftModel, get_peft_model(backbone, config, adapter_name))
    state = {
        f"{layer}.nsl_similarity.{adapter_name}.{key}": tensor
        for layer, part in adapter.similarities.items()
        for key, tensor in part.state_dict().items()
    }
    for key, tensor in adapter.values.items():
        owner, _, name = key.rpartition(".")
        state[f"{owner}.modules_to_save.{adapter_name}.{name}"] = tensor
    backbone.load_state_dict(state, strict=False)
    return model

"""Freezing all of a network but its similarities."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from neural_similarity.conversion.backbone_state import (
    mark_frozen,
    mark_trained,
    mark_unfrozen,
    modules_outside,
)
from neural_similarity.conversion.where import Parts, plain_modules, plain_state, select_tensors
from neural_similarity.nn import GlobalSimilarity, SelfAttention
from neural_similarity.nn.layer import has_similarity
from neural_similarity.nn.modes import check_module

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)
NormMode = Literal["eval", "train"]
WORDS = {
    "M": "similarities",
    "all": "parameters",
    "head": "a layer with parameters",
    "norm": "gains and shifts of normalisation",
    "bias": "biases",
}
"""What trains, in words, and what a network needs for each; the head is its last layer."""
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
log = logging.getLogger(__name__)
_MOVED = (
    "%d tensors have changed since ns.convert or ns.freeze_backbone saw them, and are the backbone "
    "from now on: save its weights too, as ns.load_adapter needs them"
)


def freeze_backbone(
    model: AnyNetwork, norm: NormMode = "eval", train: Parts | None = None
) -> AnyNetwork:
    """Freeze all of `model` but its similarities and what `train` names, in place. Paper, §4.

    All else is the backbone: `save_adapter` writes what trains, and `load_adapter` expects the rest
    to be there. The number of trainable parameters is logged (INFO). With `train=None` a warning
    names the last frozen layer, in case it is a new head; another warning says if the backbone is
    no longer what `convert` saw. Freeze last: a tool that replaces normalisation, such as
    `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, undoes its freezing.

    Args:
        model: A converted network.
        norm: "eval" keeps normalisation at its running statistics in training mode too, so that
            the backbone computes the same function; "train" normalises by the batch in training
            mode, and `save_adapter` writes the running statistics. In both cases the vectors of a
            spectral norm stay if its kernel is frozen, and are written if it trains.
        train: What else trains: words joined by + ("M+head", "M+norm+bias", "M+all"), where head is
            the last layer; or names or globs of modules and parameters ("fc", "*.bn?"), or modules;
            () for nothing else. A single word that is a name in the network is that name.

    Returns:
        `model` itself.

    Raises:
        ValueError: the network has no similarity and `train` is None or names M, or `train` names
            what has no parameter there, or `norm` is unknown.
    """
    if norm not in get_args(NormMode):
        raise ValueError(f'`norm` must be "eval" or "train", got {norm!r}')
    check_module(model)
    similarities = similarities_of(model)
    words = _words_of(model, train)
    if not similarities and (train is None or "M" in words):
        raise ValueError(
            "`model` must have similarities to train, got a network without any; convert it first"
        )
    parts = [part for word in words for part in parts_of_word(model, word)] if words else train
    trained = select_tensors(model, () if parts is None else parts, "train", nn.Parameter)
    remove_norm_hooks(model)
    model.requires_grad_(False)
    for part in (*similarities, *trained.values()):
        part.requires_grad_(True)
    outside = list(modules_outside(model, similarities))
    hold_statistics(outside, norms=norm == "eval")
    statistics = [] if norm == "eval" else _statistics(outside)
    for module in _spectral_norms(outside, trained=True):
        statistics += module.buffers(recurse=False)
    mark_trained(model, similarities, [*trained.values(), *statistics])
    if moved := mark_frozen(model, similarities):
        log.warning(_MOVED, moved)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in model.parameters())
    log.info("%s of %s parameters train", f"{count:,}", f"{whole:,}")
    if train is None and (last := head_name(model)):
        log.warning("%r is frozen, too; train=%r trains it", last, last)
    return model


def hold_statistics(modules: Collection[nn.Module], norms: bool = True) -> None:
    """Let spectral norms of frozen kernels among modules keep their vectors in training mode, too.

    With `norms`, normalisation keeps its running statistics.
    """
    held = [m for m in modules if norms and hasattr(m, "running_mean")]
    for module in (*held, *_spectral_norms(modules, trained=False)):
        hooks = _Held(module)
        # Before others: a spectral norm may be one itself.
        module.register_forward_pre_hook(hooks.restore_statistics, prepend=True)
        module.register_forward_hook(hooks.hold_statistics, always_call=True)


def _spectral_norms(modules: Iterable[nn.Module], trained: bool) -> Iterator[nn.Module]:
    """The modules with the vectors of spectral norms, whose kernels train or are frozen."""
    for module in modules:
        if isinstance(module, ParametrizationList):
            parts = [part for part in module if isinstance(part, _SpectralNorm)]
        else:
            hooks = module._forward_pre_hooks.values()
            parts = [module for hook in hooks if isinstance(hook, SpectralNorm)]
        if parts and any(p.requires_grad for p in module.parameters(recurse=False)) == trained:
            yield from parts


def _statistics(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The running statistics of normalisation, as far as it has any."""
    named = ("running_mean", "running_var")
    return [t for m in modules for name in named if (t := getattr(m, name, None)) is not None]


def _words_of(model: nn.Module, train: Parts | None) -> list[str]:
    """The words in `train`; none where it is names of parts, or modules."""
    if not isinstance(train, str) or not ("+" in train or train in WORDS):
        return []
    is_name = train in {*plain_modules(model), *plain_state(model)}
    return [] if is_name else check_words(train.split("+"))


def check_words(words: list[str]) -> list[str]:
    """`words`, each of them one of `WORDS`."""
    if not set(words) <= set(WORDS):
        raise ValueError(f"`train` must join {', '.join(WORDS)} by +, got {'+'.join(words)!r}")
    return words


def parts_of_word(model: nn.Module, word: str) -> list[str]:
    """Names and globs of what a word names in a network, besides similarities."""
    names = [] if word == "M" else layers_of_word(layers_outside(model), word)
    if word == "bias":
        return sorted({"*.bias" if name else "bias" for name in names})
    return ["*"] if word == "all" else [name or "*" for name in names]


def layers_of_word(layers: Mapping[str, nn.Module], word: str) -> list[str]:
    """Those of the layers of a network that "all", "head", "norm" or "bias" names."""
    learning = _learning_layers(layers)
    named = {
        "all": learning,
        "head": learning[-1:],
        "norm": [name for name in learning if isinstance(layers[name], _NORMS)],
        "bias": [name for name in learning if layers[name]._parameters.get("bias") is not None],
    }[word]
    if not named:
        raise ValueError(
            f"`train` must name what there is, got {word!r} for a network without {WORDS[word]}"
        )
    return named


def _learning_layers(layers: Mapping[str, nn.Module]) -> list[str]:
    """The layers that have parameters themselves."""
    return [n for n, m in layers.items() if next(m.parameters(recurse=False), None) is not None]


def layers_outside(model: nn.Module) -> dict[str, nn.Module]:
    """The modules with tensors of their own outside of similarities, by their plain names."""
    outside = set(modules_outside(model, similarities_of(model)))
    return {name: module for name, module in plain_modules(model).items() if module in outside}


def head_name(model: nn.Module) -> str:
    """The name of a network's last layer with parameters, such as a classifier; "" without any."""
    return (_learning_layers(layers_outside(model)) or [""])[-1]


def unfreeze_backbone(model: AnyNetwork) -> AnyNetwork:
    """Undo `freeze_backbone`: let all of `model` train again, in place.

    `save_adapter` still writes what was trainable until then.

    Returns:
        `model` itself.
    """
    check_module(model)
    remove_norm_hooks(model)
    mark_unfrozen(model)
    return model.requires_grad_(True)


def similarities_of(model: nn.Module) -> list[nn.Module]:
    """The similarities of a network: those of its layers, and those of whole maps."""
    layers = [module for module in model.modules() if has_similarity(module)]
    whole = [m for m in model.modules() if isinstance(m, GlobalSimilarity | SelfAttention)]
    return [layer.get_submodule("similarity") for layer in layers] + whole


def remove_norm_hooks(model: nn.Module) -> None:
    """Remove the hooks of `freeze_backbone`."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", None), _Held):
                    del hooks[key]
                    module._forward_hooks_always_called.pop(key, None)


class _Held:
    """Hooks that run a module in evaluation mode, whatever mode it is in.

    Raises:
        ValueError: `update_bn` estimates new statistics, for which it sets the momentum to None.
    """

    def __init__(self, module: nn.Module):
        self._had_momentum = getattr(module, "momentum", None) is not None
        self._training: bool | None = None

    def restore_statistics(self, module: nn.Module, _: Any) -> None:
        if self._had_momentum and getattr(module, "momentum", None) is None:
            raise ValueError(
                "normalisation that `freeze_backbone` froze must keep its momentum, got None: "
                "torch.optim.swa_utils.update_bn has reset its statistics to estimate new ones; "
                "call ns.unfreeze_backbone first"
            )
        self._training = module.training
        module.training = False

    def hold_statistics(self, module: nn.Module, _input: Any, _output: Any) -> None:
        if self._training is not None:
            module.training = self._training

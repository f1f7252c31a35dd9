"""PEFT's tuner of similarities."""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from math import isfinite
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, check_target_module_exists
from peft.utils import ModulesToSaveWrapper, register_peft_method
from peft.utils.integrations import skip_init_on_device
from torch import nn

from neural_similarity.conversion.adapter_file import check_finite
from neural_similarity.conversion.freezing import (
    hold_statistics,
    layers_of_word,
    remove_norm_hooks,
)
from neural_similarity.conversion.planning import check_plan, make_plan
from neural_similarity.conversion.surgery import whole_or_nothing
from neural_similarity.conversion.where import CHECKPOINTED, COMPILED, is_wrapper, plain_name
from neural_similarity.nn import Similarity, StaticSimilarity, sharing
from neural_similarity.nn.layer import LAYER_CLASSES, has_similarity
from neural_similarity.nn.own_forward import computes_kernel
from neural_similarity.peft.config import NSL, NslConfig, require_all
from neural_similarity.peft.nsl_layer import (
    NslLayer,
    exact_pattern,
    is_linear,
    nsl_layers,
    plain_layers,
)

log = logging.getLogger(__name__)
_COMPUTED = "computes its kernel, so that nothing can be merged; ns.convert takes it"
_CONVERTED = "has a similarity already; give PEFT ns.fold(model), or ns.unconvert(model) without M"
_ADAPTERS_OWN = {"nsl_similarity", "modules_to_save"}


def _in_all_layers(method: Callable[..., None]) -> Callable[..., None]:
    """A method of PEFT's that changes all layers or, where it fails, none."""

    @wraps(method)
    def whole(self: BaseTuner, *args: Any, **kwargs: Any) -> None:
        with whole_or_nothing(self.model):
            method(self, *args, **kwargs)

    return whole


class NslModel(BaseTuner):
    """PEFT's tuner of similarities, which `peft.get_peft_model` makes for an `NslConfig`.

    Normalisation outside `modules_to_save` keeps its running statistics in training mode, too, as
    after `ns.freeze_backbone`: PEFT saves no statistics of the backbone.

    Raises:
        ValueError: a target has no counterpart with a similarity, or the similarity does not fit
            it; the network is left unchanged.
    """

    prefix = "nsl_"
    tuner_layer_cls = NslLayer
    target_module_mapping = {}  # noqa: RUF012

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        """Wrap the targets of an adapter, all or none."""
        with whole_or_nothing(model), sharing():
            super().inject_adapter(model, adapter_name, *args, **kwargs)
            self._copy_trained(adapter_name)
            self._hold_backbone(model)

    @contextmanager
    def _enable_peft_forward_hooks(self, *_: Any, **kwargs: Any) -> Generator[None]:
        """Let `adapter_names` of a call name the adapter of every row, as in PEFT's LoRA."""
        if (names := kwargs.get("adapter_names")) is None:
            yield
            return
        self._check_rows(names)
        with ExitStack() as stack:
            if not torch.compiler.is_compiling():  # What is compiled does not see new hooks.
                with suppress(RuntimeError):  # The call itself is compiled.
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
            for part in self.modules():
                if isinstance(part, NslLayer | ModulesToSaveWrapper):
                    hook = part.register_forward_pre_hook(
                        lambda _, args, own: (args, own | {"adapter_names": names}),
                        with_kwargs=True,
                    )
                    stack.callback(hook.remove)
            yield

    def _check_rows(self, names: Sequence[str]) -> None:
        """PEFT's own conditions, in its words, and one that it lacks."""
        layers = nsl_layers(self.model).values()
        heads = [part for part in self.modules() if isinstance(part, ModulesToSaveWrapper)]
        used = {*names, *self.active_adapters} - {"__base__"}  # PEFT asks heads for the active one.
        unknown = sorted(used.difference(*(layer.nsl_similarity for layer in layers)))
        refused = "Cannot pass `adapter_names` when"
        require_all({
            f"{refused} the model is in training mode.": not self.training,
            f"Trying to infer with non-existing adapter(s): {', '.join(unknown)}": not unknown,
            f"{refused} there are merged adapters, please call `unmerge_adapter` first.": (
                not any(layer.merged for layer in layers)
            ),
            f"{refused} one of {sorted(used)} has no `modules_to_save` where others have.": (
                all(used <= {*head.modules_to_save} for head in heads)
            ),
        })  # fmt: skip

    @staticmethod
    def _check_target_module_exists(peft_config: Any, key: str) -> Any:
        """By the name before the network was compiled or checkpointed, as in `ns.convert`."""
        return check_target_module_exists(peft_config, plain_name(key))

    def add_weighted_adapter(
        self, adapters: Sequence[str], weights: Sequence[float], adapter_name: str
    ) -> None:
        """Add the adapter M = I + Σ wᵢ (Mᵢ − I) of others that have one similarity.

        Raises:
            ValueError: a name is unknown or taken; the numbers of names and weights differ; the
                similarities differ, or M is not linear in what is learned; a weight is not finite;
                or an adapter has modules, kernels or biases of its own (`modules_to_save`, `train`,
                `bias`), which have no such sum.
        """
        self._check_sum(adapters, weights, adapter_name)
        layers = nsl_layers(self.model).items()
        summands = {name: layer for name, layer in layers if layer.adapters_here(adapters)}
        config = replace(
            cast(NslConfig, self.peft_config[adapters[0]]),
            target_modules=exact_pattern(summands), exclude_modules=None, init_weights=True,
        )  # fmt: skip
        with whole_or_nothing(self.model):  # It has the dict of configurations, too.
            self.peft_config[adapter_name] = config
            self.inject_adapter(self.model, adapter_name)
            for layer in summands.values():
                layer.sum_into(adapter_name, dict(zip(adapters, weights, strict=True)))

    def _check_sum(self, adapters: Sequence[str], weights: Sequence[float], name: str) -> None:
        configs = [cast(NslConfig, self.peft_config[a]) for a in adapters if a in self.peft_config]
        texts = {str(config.similarity) for config in configs}
        layers = nsl_layers(self.model).values()
        parts = [layer.nsl_similarity[a] for layer in layers for a in layer.adapters_here(adapters)]
        require_all({
            f"`adapters` must be names of {', '.join(self.peft_config)}, one for each of "
            f"`weights`, got {list(adapters)} and {list(weights)}": (
                0 < len({*adapters}) == len(configs) == len(weights)
            ),
            f"`weights` must be finite, got {list(weights)}": all(map(isfinite, weights)),
            f"`adapter_name` must be new and have no dot, got {name!r}": (
                name not in self.peft_config and "." not in name
            ),
            "`adapters` must have no `modules_to_save`, kernels or biases, which have no sum": (
                not any(c.modules_to_save or c.trained or c.bias != "none" for c in configs)
            ),
            "`adapters` must have one static similarity, linear in what it learns, got "
            f"{', '.join(sorted(texts))}": len(texts) == 1 and all(map(is_linear, parts)),
        })  # fmt: skip

    @skip_init_on_device
    def _prepare_adapter_config(self, peft_config: Any, model_config: Any) -> Any:
        del model_config
        if peft_config.target_modules is None:
            names = self.targeted_module_names or self._default_targets(peft_config.spec)
            peft_config.target_modules = exact_pattern(names)
        self._name_trained(peft_config)
        return peft_config

    def _name_trained(self, config: Any) -> None:
        """Find the layers that the words of `train` name; what is copied whole has no M inside."""
        layers, names = plain_layers(self.model), set[str]()
        for word in set(config.words) - {"M"}:
            named = layers_of_word(layers, word)
            names.update(named if word != "bias" else ())  # PEFT lets these train by `bias`.
        targets = {name for name in layers if self._check_target_module_exists(config, name)}
        starts = {name: f"{name}.".removeprefix(".") for name in names}
        around = {n for n, start in starts.items() for t in targets - {n} if t.startswith(start)}
        others = names & {plain_name(name) for name in nsl_layers(self.model)} - targets
        require_all({
            f"`train` must not name parameters around layers with M, got those of {around}; "
            "ns.freeze_backbone trains them": not around,
            f"`train` must not name layers in which other adapters alone have M, got {others}": (
                not others
            ),
        })  # fmt: skip
        config.trained = names

    def _copy_trained(self, adapter_name: str) -> None:
        """Copy the layers without M that train for an adapter, as PEFT does by ends of names."""
        config, active = self.peft_config[adapter_name], adapter_name in self.active_adapters
        parts = {plain_name(name): part for name, part in self.model.named_modules()}
        for part in [parts[name] for name in cast(NslConfig, config).trained]:
            if isinstance(part, NslLayer):
                continue
            if isinstance(part, ModulesToSaveWrapper):
                part.update(adapter_name)
            else:
                part, plain = ModulesToSaveWrapper(part, adapter_name), part
                self._replace_module(self.model, "", part, plain)
            if active:
                part.set_adapter(adapter_name, inference_mode=bool(config.inference_mode))

    def _hold_backbone(self, model: nn.Module) -> None:
        """Let normalisation keep its statistics, except in predictors and `modules_to_save`."""
        configs = cast(dict[str, NslConfig], self.peft_config).items()
        copies = {f"{layer}.modules_to_save.{a}" for a, each in configs for layer in each.trained}
        remove_norm_hooks(model)
        hold_statistics([
            part
            for name, part in model.named_modules()
            if _ADAPTERS_OWN.isdisjoint(name.split(".")) or plain_name(name) in copies
        ])  # fmt: skip

    def _default_targets(self, spec: Similarity) -> list[str]:
        """What `ns.convert` converts, except layers that compute their kernel."""
        reasons = make_plan(self.model, spec, None)
        if "" in reasons:
            raise ValueError(
                f"`model` must have its layers inside, got a single {type(self.model).__name__}; "
                "put it into a torch.nn.Sequential"
            )
        modules = dict(self.named_modules(remove_duplicate=False))
        fit = [name for name, why in reasons.items() if why is None]
        if computed := [name for name in fit if computes_kernel(modules[f"model.{name}"])]:
            reasons |= dict.fromkeys(computed, _COMPUTED)
            log.warning("no M for %s: %s", ", ".join(map(repr, computed)), _COMPUTED)
        check_plan(self.model, reasons, spec, None)
        if len(fit) == len(computed):
            raise ValueError(f"`model` must have a layer without M, got none: each {_CONVERTED}")
        return [name for name in fit if name not in computed]

    def _create_and_replace(self, peft_config: Any, *args: Any, **kwargs: Any) -> None:
        adapter_name, target, target_name, parent = args
        if is_wrapper(target):  # What it holds has the same plain name, and is the target.
            return
        name = plain_name(kwargs["current_key"])
        ours = isinstance(target, NslLayer)
        _check_target(target.get_base_layer() if ours else target, name, peft_config.spec)
        if ours:
            target.update_layer(adapter_name, peft_config)
            return
        layer = NslLayer(target, adapter_name, peft_config, name)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)

    def _replace_module(
        self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module
    ) -> None:
        """In all places of the child, of which PEFT visits one.

        Without PEFT's copy of the weight, which a whole module in `modules_to_save` lacks.
        """
        del parent, child_name
        # checkpoint_wrapper forwards the attributes of its layer, for which PEFT takes it.
        child = child._modules.get(CHECKPOINTED) or child
        for outer in list(self.model.modules()):
            for name in [name for name, part in outer._modules.items() if part is child]:
                if name == COMPILED:  # It goes on with the layer that it was made of.
                    raise ValueError(
                        "`target_modules` must name no layer that is compiled alone, got a "
                        f"{type(child).__name__}; compile it afterwards"
                    )
                setattr(outer, name, new_module)

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        """Learn a static M in float32 at least; a predictor computes in the type of its input."""
        for layer in nsl_layers(self.model).values() if autocast_adapter_dtype else ():
            for name in layer.adapters_here([adapter_name]):
                part = layer.nsl_similarity[name]
                if isinstance(part, StaticSimilarity) and part.raw.dtype.itemsize < 4:
                    part.float()

    merge_adapter = _in_all_layers(BaseTuner.merge_adapter)
    unmerge_adapter = _in_all_layers(BaseTuner.unmerge_adapter)
    set_adapter = _in_all_layers(BaseTuner.set_adapter)

    def _unload_and_optionally_merge(self, *args: Any, **kwargs: Any) -> Any:
        with whole_or_nothing(self.model):
            model = super()._unload_and_optionally_merge(*args, **kwargs)
        remove_norm_hooks(cast(Any, model))
        return model

    def named_modules(self, *args: Any, **kwargs: Any) -> Generator[tuple[str, Any]]:
        """By the names that they had before they were compiled or checkpointed, as in files."""
        for name, module in super().named_modules(*args, **kwargs):
            yield plain_name(name), module

    @classmethod
    def _get_adapter_state_dict(cls, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """As PEFT's, which looks there for `modules_to_save`, too, by the names of modules."""
        state = kwargs["state_dict"]
        state.update({plain_name(key): tensor for key, tensor in state.items()})
        return super()._get_adapter_state_dict(*args, **kwargs)

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: Any, adapter_name: str, state_dict: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """As PEFT's, for compiled names, too; a `ValueError` where a number is not finite."""
        for key, tensor in state_dict.items():
            check_finite(f"{key} of adapter {adapter_name!r}", tensor)
        keys = {plain_name(key): key for key in model.state_dict()}
        keys |= {cls._remove_adapter_name_from_key(k, adapter_name): k for k in keys.values()}
        state = {plain_name(key): tensor for key, tensor in state_dict.items()}
        state = super()._remap_adapter_state_dict_for_load(model, config, adapter_name, state)
        return {keys.get(key, key): tensor for key, tensor in state.items()}

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        """As PEFT's, also for the tensors of predictors, which lie deeper, and without wrappers."""
        key = plain_name(key)
        for part in NslLayer.adapter_layer_names:
            layer, own, rest = key.rpartition(f".{part}.{adapter_name}.")
            if own:
                return f"{layer}.{part}.{rest}"
        return super()._remove_adapter_name_from_key(key, adapter_name)


@skip_init_on_device
def _check_target(layer: nn.Module, name: str, spec: Similarity) -> None:
    """Raise a `ValueError` where a target cannot have this similarity."""
    kinds = [kind for kind in LAYER_CLASSES if kind is not nn.LSTM]
    if isinstance(layer, BaseTunerLayer):
        why = "has an adapter of another tuner"
    elif isinstance(layer, tuple(kinds)):
        why = make_plan(layer, spec, [""])[""]
        if why is None and computes_kernel(layer):
            why = _COMPUTED
        elif has_similarity(layer):
            why = _CONVERTED
    else:
        why = f"is a {type(layer).__name__}"
    if why is not None:
        raise ValueError(
            f"`target_modules` must name layers that a similarity fits "
            f"({', '.join(kind.__name__ for kind in kinds)}), got {name!r}, which {why}"
        )


register_peft_method(
    name=NSL.lower(), config_cls=NslConfig, model_cls=NslModel, prefix=NslModel.prefix
)

"""The base of all layers with a similarity, and their exchange for torch's own."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from torch import fx, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.modes import evaluation_mode, first_parameter, is_made_by
from neural_similarity.nn.similarity import StaticSimilarity
from neural_similarity.nn.text import Similarity, SimilarityName, resolve_similarity
from neural_similarity.ops import require_tensors

Forward = TypeVar("Forward", bound=Callable[..., Any])
Plain = TypeVar("Plain", bound=nn.Module)
"""torch's class of a layer."""
LAYER_CLASSES: dict[type[nn.Module], type["SimilarityLayer"]] = {}
"""Maps torch's layer classes to ours."""
_OF_EVERY_CLASS = {
    "__init__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "plain", "__dict__", "__weakref__", "__orig_bases__", "__parameters__",
}  # fmt: skip

_AFTER_FOLDING = "has a similarity and can only be {} after ns.fold(model)"


def fx_leaf(forward: Forward) -> Forward:
    """A layer's `forward` that `torch.fx` records as one call of the layer, like torch's own."""

    @wraps(forward)
    def recorded(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, fx.Proxy):
                return _record_call(cast(fx.Tracer, value.tracer), layer, args, kwargs)
        if args and not isinstance(args[0], PackedSequence):
            require_tensors(input=args[0])
        return forward(layer, *args, **kwargs)

    return cast(Forward, recorded)


def _record_call(tracer: fx.Tracer, layer: nn.Module, args: Any, kwargs: Any) -> fx.Proxy:
    path = tracer.path_of_module(layer)
    if not path:
        raise ValueError(
            "torch.fx cannot trace a single layer with a similarity, which it records as one call; "
            "wrap it in a network: torch.nn.Sequential(layer)"
        )
    if "quantization" in type(tracer).__module__ and has_similarity(layer):
        warnings.warn(f"{path!r} {_AFTER_FOLDING.format('quantised')}", stacklevel=3)
    return tracer.create_proxy("call_module", path, args, kwargs)


class SimilarityLayer(nn.Module, Generic[Plain]):
    """One of torch's layers, its class `plain`, with a `similarity`; None is the plain layer.

    Parameters keep torch's names, so that its checkpoints load with only `similarity.*` missing.
    A subclass of one of our layers can be converted as it is, and folds into its `plain` where it
    overrides only `__init__`; `register` makes a class the one that its `plain` is converted into.
    """

    plain: ClassVar[type[nn.Module]]
    similarity: Any
    """A `StaticSimilarity`, a `DynamicSimilarity`, a module of one's own, or None."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            ValueError: LyCORIS installs its own `forward`, which reads the kernel without M.
        """
        given = name == "forward" and is_made_by("lycoris", getattr(value, "__self__", None))
        if (given or name.startswith("_lycoris")) and has_similarity(self):
            raise ValueError(f"a {type(self).__name__} {_AFTER_FOLDING.format('given to LyCORIS')}")
        super().__setattr__(name, value)

    def geometry(self) -> Geometry:
        """The sizes of the layer that a similarity depends on."""
        raise NotImplementedError

    def with_similarity(self, similarity: Similarity | SimilarityName | nn.Module | None) -> Self:
        """Give the layer a similarity, in place, on its device, in its dtype and mode.

        Raises:
            ValueError: it is not a similarity, or does not fit the layer: complex weights, or a
                padding or geometry that it does not support.
        """
        module = self.build_similarity(resolve_similarity(similarity))
        if module is not None:
            parameter = first_parameter(self)
            if parameter.is_complex():
                raise ValueError(
                    "`similarity` must be None in a layer with complex weights, as similarities "
                    f"are real, got {similarity!r} and {parameter.dtype}"
                )
            if module is not similarity:
                module.to(device=parameter.device, dtype=parameter.dtype).train(self.training)
        self.similarity = module
        return self

    def without_similarity(self) -> nn.Module:
        """Undo `with_similarity`: turn the layer into torch's again, in place, without M.

        Raises:
            ValueError: the layer is of another class, or has a replaced `forward`.
        """
        check_exact(self)
        _release_forward(self)
        del self.similarity
        _set_class(self, self.plain)
        return self

    @classmethod
    def extended(cls, subclass: type[nn.Module]) -> "type[SimilarityLayer] | None":
        """The class that a subclass of `plain` is converted into, if it has one of its own."""
        del subclass
        return None

    def settle_kernel(self) -> None:
        """Make parameters of what parametrizations or `torch.nn.utils.weight_norm` compute."""
        for hook in [*self._forward_pre_hooks.values()]:
            if isinstance(hook, WeightNorm):
                remove_weight_norm(self, hook.name)
        if is_parametrized(self):
            names = list(cast(nn.ModuleDict, self.parametrizations))
            with evaluation_mode(self):  # In training mode, spectral_norm writes when it is read.
                values = {name: getattr(self, name).detach() for name in names}
            # Not by torch's function: it takes the property off a class that copies share.
            self.__class__ = type(self).__bases__[0]
            del self.parametrizations
            for name, value in values.items():
                setattr(self, name, nn.Parameter(value))

    def build_similarity(self, similarity: Similarity | nn.Module | None) -> nn.Module | None:
        """The module that a spec describes, or the module itself."""
        if similarity is None or isinstance(similarity, nn.Module):
            return similarity
        return similarity.build(self.geometry())

    def similarities(self) -> dict[str, nn.Module]:
        """The similarity of every kernel, by the kernel's name."""
        return {} if self.similarity is None else {"weight": self.similarity}

    def foldable(self) -> bool:
        """Whether a plain layer computes the same."""
        return all(isinstance(part, StaticSimilarity) for part in self.similarities().values())

    def fold(self) -> nn.Module:
        """Fold the static similarity into the kernel and turn the layer into torch's, in place.

        Raises:
            ValueError: the similarity is dynamic, the layer is of another class, or a hook
                computes its kernel or M.
        """
        check_exact(self)
        if not self.foldable():
            raise ValueError(
                f"`similarity` must be static for the layer to be folded, got {self.similarity!r}"
            )
        self.settle_kernel()
        for name, part in self.similarities().items():
            _check_current(self, name)
            _check_current(part, "raw")
            kernel = cast(nn.Parameter, getattr(self, name))
            folded = cast(StaticSimilarity, part).fold(kernel)
            setattr(self, name, nn.Parameter(folded.detach(), kernel.requires_grad))
        return self.without_similarity()

    def fuse(self) -> Plain:
        """torch's layer that computes the same; the layer itself where M is dynamic.

        timm's `reparameterize_model` calls it. Blocks that merge kernels themselves (RepVGG,
        MobileOne, RepViT, FastViT) read the kernel without M: `ns.fold` these networks first.
        """
        return cast(Plain, deepcopy(self).fold() if self.foldable() else self)


Registered = TypeVar("Registered", bound=type[SimilarityLayer])


def register(kind: Registered) -> Registered:
    """Decorator: layers of the class `kind.plain` are converted into `kind`, and fold back.

    Raises:
        ValueError: another class is registered for this `plain`, or `kind` has none of its own.
    """
    plain = vars(kind).get("plain")
    if not (isinstance(plain, type) and issubclass(plain, nn.Module)):
        raise ValueError(f"`plain` of {kind.__name__} must be a class of modules, got {plain!r}")
    if plain in LAYER_CLASSES:
        raise ValueError(
            f"`plain` of {kind.__name__} must be a class that no layer is registered for, got "
            f"{plain.__name__}, which is converted into a {LAYER_CLASSES[plain].__name__}"
        )
    LAYER_CLASSES[plain] = kind
    return kind


def equip_layer(layer: nn.Module, similarity: Similarity | SimilarityName) -> SimilarityLayer:
    """Turn a torch layer into ours in place; parameters, hooks and references to it stay."""
    return become_ours(layer).with_similarity(similarity)


def become_ours(layer: nn.Module) -> SimilarityLayer:
    """Turn a torch layer into one of our class in place, without setting its `similarity`.

    Raises:
        ValueError: no layer with a similarity exists for its class, or its `forward` is replaced.
    """
    if not isinstance(layer, SimilarityLayer):
        ours = counterpart(unparametrized_class(layer))
        if ours is None:
            raise ValueError(f"a {type(layer).__name__} cannot have a similarity")
        _release_forward(layer)
        _set_class(layer, ours)
    return cast(SimilarityLayer, layer)


def build_for(layer: nn.Module, spec: Similarity) -> nn.Module:
    """The similarity that `become_ours(layer)` would have, for a layer that stays torch's.

    Raises:
        ValueError: it does not fit the layer.
    """
    kind = type(layer)
    try:
        return cast(nn.Module, become_ours(layer).build_similarity(spec))
    finally:
        layer.__class__ = kind


def replaced_forward(layer: nn.Module) -> Any:
    """The `forward` set on a layer itself; None if it is the class's, as tools restore it."""
    forward = vars(layer).get("forward")
    is_bound = getattr(forward, "__self__", None) is layer
    return (
        None if is_bound and getattr(forward, "__func__", None) is type(layer).forward else forward
    )


def _release_forward(layer: nn.Module) -> None:
    """Remove the class's `forward` from the layer itself, so that its class can be exchanged.

    Raises:
        ValueError: the layer itself has another `forward`.
    """
    if replaced_forward(layer) is not None:
        raise ValueError(
            f"a {type(layer).__name__} must have its class's own `forward`, got another one "
            "(accelerate's hooks and LyCORIS put it there); remove them first"
        )
    vars(layer).pop("forward", None)


def counterpart(layer_class: type[nn.Module]) -> "type[SimilarityLayer] | None":
    """Our class for a class of torch's or a subclass of it; None without one, or if it is ours."""
    plain = next((base for base in layer_class.__mro__ if base in LAYER_CLASSES), None)
    if plain is None or issubclass(layer_class, SimilarityLayer):
        return None
    if any(base.__module__.startswith("torch.distributed") for base in layer_class.__mro__):
        return None
    ours = LAYER_CLASSES[plain]
    made = ours if layer_class is plain else ours.extended(layer_class)
    return made or (ours if adds_nothing(layer_class, plain) else None)


def unparametrized_class(layer: nn.Module) -> type[nn.Module]:
    """A layer's class below the one that torch's parametrizations put on top."""
    return type(layer).__bases__[0] if is_parametrized(layer) else type(layer)


def _set_class(layer: nn.Module, layer_class: type[nn.Module]) -> None:
    """Exchange a layer's class below its parametrizations."""
    if is_parametrized(layer):
        above = {k: v for k, v in vars(type(layer)).items() if k not in _OF_EVERY_CLASS}
        layer_class = type(type(layer).__name__, (layer_class,), above)
    layer.__class__ = layer_class


def adds_nothing(layer_class: type[nn.Module], base: type[nn.Module]) -> bool:
    """Whether a subclass overrides only `__init__` of `base`."""
    above = layer_class.__mro__[: layer_class.__mro__.index(base)]
    overridden = {name for each in above for name in vars(each) if hasattr(base, name)}
    return not overridden - _OF_EVERY_CLASS


def geometry_of(layer: nn.Module) -> Geometry:
    """The geometry of a torch layer, or of ours."""
    return counterpart_of(layer).geometry(cast(SimilarityLayer, layer))


def counterpart_of(layer: nn.Module) -> type[SimilarityLayer]:
    """Our class for a torch layer, or the layer's own if it is ours."""
    kind = unparametrized_class(layer)
    return cast(type[SimilarityLayer], counterpart(kind) or kind)


def check_exact(layer: SimilarityLayer) -> None:
    """Raise a `ValueError` where torch's class would drop what a subclass adds."""
    kind = unparametrized_class(layer)
    exact = next((b for b in kind.__mro__ if counterpart(getattr(b, "plain", b)) is b), kind)
    if not adds_nothing(kind, exact):
        raise ValueError(
            f"a layer must be exactly an ns.{exact.__name__} to become a torch.nn."
            f"{layer.plain.__name__}, got a {kind.__name__}"
        )


def _check_current(module: nn.Module, name: str) -> None:
    """Raise a `ValueError` where a hook computes a parameter at every call."""
    if name not in module._parameters and not is_parametrized(module, name):
        raise ValueError(
            f"`{name}` must be a parameter to be folded, got a tensor that a hook computes "
            "(pruning, weight_norm); remove the hook first"
        )


def has_similarity(module: nn.Module) -> bool:
    """Whether a module is a layer with a similarity in it."""
    return isinstance(module, SimilarityLayer) and module.similarity is not None


def is_dynamic(module: nn.Module) -> bool:
    """Whether a module is a layer that no plain layer equals."""
    return isinstance(module, SimilarityLayer) and not module.foldable()


def _refuse_wrappers(outer: nn.Module, name: str, layer: nn.Module | None) -> None:
    """Raise a `ValueError` where PEFT wraps a layer with a similarity.

    Its branch would run without M, and merge into the kernel, which M multiplies.
    """
    named = name == "base_layer" and layer is not None and has_similarity(layer)
    if named and is_made_by("peft", outer):
        raise ValueError(f"a {type(layer).__name__} {_AFTER_FOLDING.format('wrapped')}")


register_module_module_registration_hook(_refuse_wrappers)

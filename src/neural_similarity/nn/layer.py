"""What the layers with a similarity have in common, and their exchange for torch's own."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar, cast

from torch import Tensor, fx, nn

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.similarity import StaticSimilarity
from neural_similarity.nn.text import Similarity, parse_similarity

Forward = TypeVar("Forward", bound=Callable[..., Any])
LAYERS: dict[type[nn.Module], type["SimilarityLayer"]] = {}
"""Ours by torch's."""


def leaf(forward: Forward) -> Forward:
    """A layer's `forward` that `torch.fx` records as one call of the layer, like torch's own."""

    @wraps(forward)
    def recorded(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        proxies = [value for value in (*args, *kwargs.values()) if isinstance(value, fx.Proxy)]
        if not proxies:
            return forward(layer, *args, **kwargs)
        tracer = cast(fx.Tracer, proxies[0].tracer)
        return tracer.create_proxy("call_module", tracer.path_of_module(layer), args, kwargs)

    return cast(Forward, recorded)


class SimilarityLayer(nn.Module):
    """A layer of torch's, its `plain` class, with a `similarity`; None is the plain layer.

    Parameters keep torch's names, so that its checkpoints load with only `similarity.*` missing.
    """

    plain: ClassVar[type[nn.Module]]
    similarity: nn.Module | None

    def __init_subclass__(cls) -> None:
        if "plain" in cls.__dict__:
            LAYERS[cls.plain] = cls

    def geometry(self) -> Geometry:
        """What a similarity needs to know of the layer."""
        raise NotImplementedError

    def with_similarity(self, similarity: Similarity | nn.Module | str | None) -> Self:
        """Give the layer a similarity, in place, on its device, in its dtype and mode."""
        self.similarity = None
        module = self.build_similarity(resolve(similarity))
        if module is not None and module is not similarity:
            parameter = next(self.parameters())
            module.to(device=parameter.device, dtype=parameter.dtype).train(self.training)
        self.similarity = module
        return self

    def build_similarity(self, similarity: Similarity | nn.Module | None) -> nn.Module | None:
        """The module of a spec, or the module itself."""
        if similarity is None or isinstance(similarity, nn.Module):
            return similarity
        return similarity.build(self.geometry())

    def folded(self) -> Mapping[str, Tensor] | None:
        """The plain layer's parameters that differ; None where no plain layer computes the same."""
        if self.similarity is None:
            return {}
        if not isinstance(self.similarity, StaticSimilarity):
            return None
        return {"weight": self.similarity.fold(cast(Tensor, self.weight))}

    def fold(self) -> nn.Module:
        """The layer made torch's in place, its static similarity folded into the kernel.

        Raises:
            ValueError: the similarity is dynamic, the layer is of another class, or a hook
                computes its kernel.
        """
        _check_exact(self)
        parameters = self.folded()
        if parameters is None:
            raise ValueError(
                f"`similarity` must be static for the layer to be folded, got {self.similarity!r}"
            )
        for name, folded in parameters.items():
            if name not in self._parameters:
                raise ValueError(
                    f"`{name}` must be a parameter to fold M into it, got what a hook computes "
                    "(pruning, weight_norm); remove the hook first"
                )
            trained = getattr(self, name).requires_grad
            setattr(self, name, nn.Parameter(folded.detach(), trained))
        return strip(self)

    def fuse(self) -> nn.Module:
        """torch's layer that computes the same; the layer itself where M is dynamic.

        timm's `reparameterize_model` calls it. Blocks that merge kernels themselves (RepVGG,
        MobileOne, RepViT) read the kernel without M: `ns.fold` such a network before.
        """
        return self if self.folded() is None else deepcopy(self).fold()


def resolve(similarity: Any) -> Similarity | nn.Module | None:
    """The spec or module that a `similarity` argument means."""
    if isinstance(similarity, str):
        return parse_similarity(similarity)
    if similarity is None or isinstance(similarity, nn.Module | Similarity):
        return similarity
    raise ValueError(
        "`similarity` must be None, a name, an ns.Static or ns.Dynamic, or a module, "
        f"got {similarity!r}"
    )


def equip(layer: nn.Module, similarity: Similarity | str) -> SimilarityLayer:
    """A torch layer made ours in place; parameters, hooks and references to it stay."""
    if not isinstance(layer, SimilarityLayer):
        layer.__class__ = LAYERS[type(layer)]
    return cast(SimilarityLayer, layer).with_similarity(similarity)


def geometry_of(layer: nn.Module) -> Geometry:
    """What a similarity would know of a torch layer, or of ours."""
    kind = LAYERS.get(type(layer), type(layer))
    return cast(type[SimilarityLayer], kind).geometry(cast(SimilarityLayer, layer))


def strip(layer: SimilarityLayer) -> nn.Module:
    """`equip` undone: the layer made torch's in place, its similarity dropped.

    Raises:
        ValueError: the layer is of another class.
    """
    _check_exact(layer)
    del layer.similarity
    layer.__class__ = layer.plain  # pyright: ignore[reportAttributeAccessIssue]
    return layer


def _check_exact(layer: SimilarityLayer) -> None:
    """Raise a `ValueError` where torch's class would drop what a subclass adds."""
    exact = LAYERS[layer.plain]
    if type(layer) is not exact:
        raise ValueError(
            f"a layer must be exactly an ns.{exact.__name__} to become a torch.nn."
            f"{layer.plain.__name__}, got a {type(layer).__name__}; remove its parametrizations"
        )


def has_similarity(module: nn.Module) -> bool:
    """Whether a module is a layer with a similarity in it."""
    return isinstance(module, SimilarityLayer) and module.similarity is not None


def is_dynamic(module: nn.Module) -> bool:
    """Whether a module is a layer that no plain one equals."""
    return isinstance(module, SimilarityLayer) and module.folded() is None

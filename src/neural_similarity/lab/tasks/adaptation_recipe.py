"""The settings of an adaptation, its run folder and its network."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from neural_similarity.conversion import (
    convert,
    freeze_backbone,
    head_name,
    parts_of_word,
    similarities_of,
)
from neural_similarity.lab.data import Inputs
from neural_similarity.lab.tasks.backbone import Backbone, Pretrained
from neural_similarity.lab.tasks.baselines import BASELINES, Baseline, with_baseline
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.train import Run
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe
from neural_similarity.nn import Full, Similarity, Static, StaticSimilarity, format_similarity

ADAPTATION_PARTS = ("M", "all", "head", "norm", "bias", "baseline")
"""What can train together; "nothing" stands alone."""
STATIC_FULL = Static(Full())


@dataclass(frozen=True, kw_only=True)
class FirstFields:
    """The options that a newcomer sets: in a base class, as help lists those of a base first."""

    backbone: str = ""
    """timm:NAME, torchvision:NAME, a run folder, or a file of weights of `model` (safetensors, or
    torch's), such as timm:resnet18 or runs/cifar10-cnn-seed1."""
    train: str = "M+head"
    """Parts that train, joined by +: M (the similarities), all (every weight), head, norm (its
    gains and shifts), bias, baseline or the name of one (M+lora); or nothing: then only running
    statistics change, if `norm` is train. Layers have an M only where this names it."""
    similarity: Similarity | None = STATIC_FULL
    """M, where `train` names it, such as static-full or dynamic-diagonal."""
    where: str | None = None
    """Layers that get a similarity or a baseline: a name or a glob such as layer4.*; by default all
    convolutions larger than 1x1."""
    steps: int = 300
    lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AdaptationRecipe(Recipe, FirstFields):
    """Adaptation of a pretrained network to a folder of images; by default M and the head train."""

    POSITIVE: ClassVar[Collection[str]] = tuple(name for name in Recipe.POSITIVE if name != "lr")
    START: ClassVar[str] = "backbone"
    START_REQUIRED: ClassVar[bool] = True

    weights: str | None = None
    """File of weights for a timm or torchvision network, in place of the downloaded weights."""
    pretrained: bool = True
    """Take the pretrained weights of timm or torchvision; False starts from random ones."""
    baseline: Baseline = "none"
    """Another adapter, alone or with M: ssf (scale and shift of each filter), film (of each
    normalised channel), lora (of rank 1), lora-c and lora-c4 (LoRA-C of rank 1 and 4), oft
    (diag-OFT in blocks of 4 filters, by LyCORIS), atoms (6 filter atoms), residual and
    residual-vector (TSA's adapters parallel to kernels), conv-adapter, adafm (filters of a layer's
    output), piggyback (masks of kernels), turn (rotates the images by one angle), tsa (residual,
    and aligned features), or atoms-9 (nine, by sparse codes). Formulas, sources and what each is
    with M: docs/reference/baselines.md."""
    norm: Literal["auto", "eval", "train"] = "auto"
    """Normalise by frozen running statistics (eval) or by the batch's statistics (train); auto is
    eval unless `train` names all."""
    classifier: Literal["auto", "new", "kept"] = "auto"
    """new, kept (the backbone's), or auto: kept if its classes have the same names. Files and
    libraries give no names: there auto keeps a classifier with the same number of classes if it
    does not train, since a classifier of other classes is a bad start."""
    per_class: int | None = None
    """Number of training images per class, drawn by the seed; by default all."""
    channels: int | None = None
    """Number of channels to which grey images are repeated; by default the backbone's."""
    dataset: str = "folder"
    inputs: Inputs = "normalized"
    """For a file of weights: pixels are normalised by the channel statistics of the training images
    (normalized) or of ImageNet (imagenet), or stay raw. Networks of timm and torchvision, and runs,
    take the mean and deviation that they were trained with."""
    model: str = "resnet20"
    similarity: Similarity | None = STATIC_FULL
    steps: int = 300
    lr: float = 0.0
    """Learning rate before the first drop; 0 finds it. New classifier: Adam in one cycle, whose
    updates change M, gains and shifts by up to 0.025, kernels by the same share of their size (both
    by up to 0.2 where all weights train, without M, by the batch's statistics), and logits by 0.4;
    less if most images already lie nearest to the mean of their own class. Kept classifier: a fifth
    of the limit that the largest curvature of the outputs sets on a batch of training images; less
    if fewer than 40 % of up to 500 images are wrong."""
    head_lr: float | None = None
    """Learning rate of the head before the first drop, if it trains; by default `lr`."""
    relative_lr: bool = False
    """Multiply the learning rate of every kernel but the head's by its initial root mean square."""
    drops: tuple[int, ...] = (200,)
    batch_size: int = 32
    weight_decay: float = 0.0
    log_every: int = 10
    evaluate_every: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        self._name_baseline()
        parts = self.parts
        known = parts == ["nothing"] or (
            set(parts) <= set(ADAPTATION_PARTS) and len(set(parts)) == len(parts)
        )
        self._require_field(
            known,
            "train",
            f"be nothing, or some of {', '.join(ADAPTATION_PARTS)} or its name, joined by +",
        )
        if "M" not in parts and self.similarity == STATIC_FULL:  # the default
            object.__setattr__(self, "similarity", None)
        if "M" not in parts and self.similarity is not None:
            raise ValueError(
                f"`train` must name M for the similarity {format_similarity(self.similarity)}, got "
                f"{self.train!r}"
            )
        self._require_field(
            self.per_class is None or self.per_class > 0, "per_class", "be at least 1"
        )
        self._require_field(self.lr >= 0, "lr", "be at least 0")
        self._require_field(
            self.head_lr is None or 0 < self.head_lr < inf, "head_lr", "be above 0, or None"
        )
        if self.lr == 0 and self.optimizer != "sgd":
            raise ValueError(f"`lr` must be above 0 for {self.optimizer}, got {self.lr}")
        if self.similarity is None and "M" in parts:
            raise ValueError(f"`train` must not name M without a similarity, got {self.train!r}")
        named = (self.baseline != "none") == ("baseline" in parts) or "all" in parts
        self._require_field(
            named, "train", f"name baseline exactly where it is one, got {self.baseline}"
        )

    def _name_baseline(self) -> None:
        """Read the name of a baseline in `train` as baseline, with that name in its field."""
        names = [part for part in self.parts if part in BASELINES]
        if names:
            others = {*names, self.baseline} - {"none"}
            self._require_field(len(others) == 1, "train", "name no second baseline")
            train = "+".join("baseline" if part in names else part for part in self.parts)
            object.__setattr__(self, "train", train)
            object.__setattr__(self, "baseline", names[0])

    @classmethod
    def current_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of 0.3, where all trained M, too, and of 0.2, where a baseline was a rival."""
        fields = super().current_fields(fields)
        if fields["train"] == "all" and fields["similarity"] != "none":
            fields |= {"train": "M+all"}
        if "rival" not in fields:
            return fields
        renamed = {
            "baseline": fields["rival"],
            "train": fields["train"].replace("rival", "baseline"),
        }
        return {name: value for name, value in fields.items() if name != "rival"} | renamed

    @property
    def parts(self) -> list[str]:
        return self.train.split("+")

    @property
    def trains_head(self) -> bool:
        return not {"head", "all"}.isdisjoint(self.parts)

    @property
    def norm_mode(self) -> Literal["eval", "train"]:
        if self.norm == "auto":
            return "train" if "all" in self.parts else "eval"
        return self.norm

    @property
    def pretrained_source(self) -> Backbone:
        own = (self.backbone, self.weights, self.pretrained, self.classifier, not self.trains_head)
        return Backbone(*own, self.where, (Run, FewShotRun, AdaptationRun))

    def rate_groups(self, model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.head_lr is None and not self.relative_lr:
            return groups
        head = set(model.get_submodule(head_name(model)).parameters())
        ratio = 1.0 if self.head_lr is None else self.head_lr / self.lr
        sizes = kernel_sizes(model) if self.relative_lr else {}
        sizes = {p: size for p, size in sizes.items() if p not in head}
        split = []
        for group in groups:  # A resumed run needs the same groups, whatever its numbers are.
            rest = [p for p in group["params"] if p not in sizes]
            parts = [
                ([p for p in rest if p not in head], 1.0),
                ([p for p in rest if p in head], ratio),
            ]
            parts += [([p], sizes[p]) for p in group["params"] if p in sizes]
            split += [
                group | {"params": chosen, "scale": scale} for chosen, scale in parts if chosen
            ]
        return split

    def load_backbone(self, classes: tuple[str, ...], **sizes: int) -> Pretrained:
        """The backbone with its weights, for these classes; a new classifier is of the seed."""
        torch.manual_seed(self.seed)
        return self.pretrained_source.load_pretrained(self, classes, **sizes)


@dataclass(frozen=True, kw_only=True)
class AdaptationRun(Run):
    """A run folder of an adaptation; a finished one holds the adapter, adapter.safetensors."""

    RECIPE: ClassVar[type[TrainingRecipe]] = AdaptationRecipe
    COMMAND: ClassVar[str] = "nsim train adapt"

    recipe: AdaptationRecipe
    """All settings of the run."""

    @property
    def input_sizes(self) -> dict[str, int]:
        return {"in_channels": self.channels, "image_size": self.image_size}

    def build(self, **overrides: Any) -> nn.Module:
        """The adapted network without its weights; the backbone's files are not needed.

        `overrides` are fields of the recipe, such as `similarity=None`; there is no baseline then.
        """
        recipe = self.recipe
        if overrides:
            similarity = overrides.get("similarity", recipe.similarity)
            train = "all" if similarity is None else "M+all"
            recipe = replace(recipe, train=train, baseline="none", **overrides)
        torch.manual_seed(recipe.seed)
        network = recipe.pretrained_source.plain_network(
            recipe, len(self.classes), **self.input_sizes
        )
        return adapt_network(network, recipe)

    def begin_network(self) -> nn.Module:
        """The network that training starts from: the backbone, M = I or as a run learned it."""
        backbone = self.recipe.load_backbone(self.classes, **self.input_sizes)
        return adapt_network(backbone.model, self.recipe, backbone.converted)


def kernel_sizes(network: nn.Module) -> dict[nn.Parameter, float]:
    """The root mean square of every kernel, or of the one that a parameter adds to; 1 for zeros.

    For a static M of K > 9 taps, 9 / K: where its K² entries move by s, the kernel may move by K s
    of its size, so M of 5×5 taps takes smaller steps than M of 3×3 taps.
    """
    kernels = {
        own: layer.get_parameter("weight") if name in getattr(layer, "ADDED", ()) else own
        for layer in network.modules()
        for name, own in layer.named_parameters(recurse=False)
    }
    sizes = {
        own: kernel.detach().float().square().mean().sqrt().item() or 1.0
        for own, kernel in kernels.items()
        if kernel.dim() > 1
    }
    static = (m for m in similarities_of(network) if isinstance(m, StaticSimilarity))
    return sizes | {m.raw: 9 / m.geometry.taps for m in static if m.geometry.taps > 9}


def adapt_network(
    network: nn.Module, recipe: AdaptationRecipe, converted: bool = False
) -> nn.Module:
    """Add the recipe's baseline and M to a network in place; freeze what does not train.

    M acts on the kernel that the baseline computes.
    """
    words = [] if recipe.train == "nothing" else recipe.parts
    named = [n for word in words if word != "baseline" for n in parts_of_word(network, word)]
    baseline = with_baseline(network, recipe.baseline, recipe.where)
    if recipe.similarity is not None and not converted:
        network = convert(network, recipe.similarity, where=recipe.where, inplace=True)
    named += baseline if "baseline" in words else []
    network = freeze_backbone(network, norm=recipe.norm_mode, train=named)
    return network if words else network.requires_grad_(False)

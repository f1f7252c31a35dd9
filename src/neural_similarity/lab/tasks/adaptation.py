"""Adapting a pretrained network to other images: its similarities, its head, or all of it."""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from neural_similarity.conversion import convert, freeze_backbone, save_adapter, similarities_of
from neural_similarity.lab.data import IN_PLACE, Dataset, Images, ImageSet, Inputs, Preprocess
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.images import split_off
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.tasks.backbone import Backbone, Pretrained, head_name
from neural_similarity.lab.tasks.baselines import Baseline, require_library, with_baseline
from neural_similarity.lab.tasks.classification import ClassificationTask, fit_recipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.own_rate import find_rate
from neural_similarity.lab.train import Run, RunError, Runtime, distributed
from neural_similarity.lab.train.checkpoint import TrainingState, state_digest
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts, start_facts
from neural_similarity.models import parameters
from neural_similarity.nn import Full, Similarity, Static, evaluation_mode

ADAPTATION_PARTS = ("M", "head", "norm", "bias", "baseline")
"""What can train, besides "all" and "nothing"."""
HELP = """Adapt a pretrained network: nsim train adapt --backbone WORD --data FOLDER

examples:
  nsim train adapt --backbone timm:resnet18 --data flowers
  nsim train adapt --backbone torchvision:resnet50 --data flowers --train M+norm --where "layer4.*"
  nsim train adapt --backbone runs/cifar10-cnn-seed1 --data flowers --similarity static-diagonal
  nsim train adapt --backbone resnet20.safetensors --model resnet20 --data flowers --train all
  nsim train --resume runs/adapt-seed0      continue exactly"""
STATIC_FULL = Static(Full())
ADAPTER = "adapter.safetensors"
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True, kw_only=True)
class FirstFields:
    """What a first adaptation sets; a base's fields come first in help."""

    backbone: str = ""
    """timm:NAME, torchvision:NAME, a run folder, or a file of weights of `model` (safetensors, or
    torch's), such as timm:resnet18 or runs/cifar10-cnn-seed1."""
    train: str = "M+head"
    """Parts that train, joined by +: M (the similarities), head, norm (its gains and shifts), bias,
    baseline; or all; or nothing: then only running statistics change, if `norm` is train. Without
    M, `similarity` must be none."""
    similarity: Similarity | None = STATIC_FULL
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
    """File of weights for a timm or torchvision network, in place of those that it downloads."""
    pretrained: bool = True
    """Take the pretrained weights of timm or torchvision; False starts from random ones."""
    baseline: Baseline = "none"
    """Another adapter in place of M: ssf (scale and shift of each filter), film (of each normalised
    channel), lora (of rank 1, by PEFT), lora-c and lora-c4 (LoRA-C of rank 1 and 4), oft (diag-OFT
    in blocks of 4 filters, by LyCORIS), atoms (6 filter atoms), residual and residual-vector (TSA's
    adapters beside every kernel), conv-adapter, adafm (filters of a layer's output), piggyback
    (masks of kernels), or turn (of the images, by one angle); formulas and sources are in
    docs/reference/baselines.md."""
    norm: Literal["auto", "eval", "train"] = "auto"
    """Normalise by frozen running statistics (eval) or by the batch's statistics (train); auto is
    eval unless `train` is all."""
    classifier: Literal["auto", "new", "kept"] = "auto"
    """new; kept, the backbone's; or auto, which keeps the backbone's if its classes have the same
    names. Files and libraries give no names: auto keeps their classifier if it has as many classes
    and does not train, since a classifier of other classes is a bad start."""
    per_class: int | None = None
    """Training images of each class, drawn by the seed; the default is all."""
    channels: int | None = None
    """Channels that grey images are repeated to; the default is the backbone's."""
    dataset: str = "folder"
    inputs: Inputs = "normalized"
    """For a file of weights: pixels are normalised by the channel statistics of the training images
    (normalized) or of ImageNet (imagenet), or stay raw. Networks of timm and torchvision, and runs,
    take the numbers that they were trained with."""
    model: str = "resnet20"
    similarity: Similarity | None = STATIC_FULL
    steps: int = 300
    lr: float = 0.0
    """Learning rate before the first drop; 0 takes a fifth of the limit that the largest
    curvature of the outputs sets, on a batch of the training images; and less where the network
    keeps its classifier and gets fewer than 40 % of up to 500 of them wrong."""
    drops: tuple[int, ...] = (200,)
    batch_size: int = 32
    weight_decay: float = 0.0
    log_every: int = 10
    evaluate_every: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.train.split("+")
        known = parts in (["all"], ["nothing"]) or (
            set(parts) <= set(ADAPTATION_PARTS) and len(set(parts)) == len(parts)
        )
        self._require_field(
            known, "train", f"be all, nothing, or some of {', '.join(ADAPTATION_PARTS)} joined by +"
        )
        if self.similarity is not None and "M" not in parts and parts != ["all"]:
            raise ValueError(
                f"`similarity` must be none where `train` leaves M out, got train={self.train!r}"
            )
        self._require_field(
            self.per_class is None or self.per_class > 0, "per_class", "be at least 1"
        )
        self._require_field(self.lr >= 0, "lr", "be at least 0")
        if self.lr == 0 and self.optimizer != "sgd":
            raise ValueError(f"`lr` must be above 0 for {self.optimizer}, got {self.lr}")
        if self.similarity is None and "M" in parts:
            raise ValueError(f"`train` must not name M without a similarity, got {self.train!r}")
        alone = self.baseline == "none" or self.similarity is None
        self._require_field(alone, "baseline", "be none with a similarity")
        named = (self.baseline != "none") == ("baseline" in parts) or parts == ["all"]
        self._require_field(
            named, "train", f"name baseline exactly where it is one, got {self.baseline}"
        )

    @classmethod
    def current_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of 0.2, which called the baseline a rival."""
        fields = super().current_fields(fields)
        if "rival" not in fields:
            return fields
        renamed = {
            "baseline": fields["rival"],
            "train": fields["train"].replace("rival", "baseline"),
        }
        return {name: value for name, value in fields.items() if name != "rival"} | renamed

    @property
    def trains_head(self) -> bool:
        return not {"head", "all"}.isdisjoint(self.train.split("+"))

    @property
    def norm_mode(self) -> Literal["eval", "train"]:
        if self.norm == "auto":
            return "train" if self.train == "all" else "eval"
        return self.norm

    @property
    def pretrained_source(self) -> Backbone:
        own = (self.backbone, self.weights, self.pretrained, self.classifier, not self.trains_head)
        return Backbone(*own, self.where, (Run, FewShotRun, AdaptationRun))

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
        plain: dict[str, Any] = {"train": "all", "baseline": "none"}
        recipe = replace(self.recipe, **plain | overrides) if overrides else self.recipe
        torch.manual_seed(recipe.seed)
        network = recipe.pretrained_source.plain_network(
            recipe, len(self.classes), **self.input_sizes
        )
        return adapt_network(network, recipe)

    def begin_network(self) -> nn.Module:
        """The network that training starts from: the backbone, M = I or as a run learned it."""
        backbone = self.recipe.load_backbone(self.classes, **self.input_sizes)
        return adapt_network(backbone.model, self.recipe, backbone.converted)


def adapt_network(
    network: nn.Module, recipe: AdaptationRecipe, converted: bool = False
) -> nn.Module:
    """Add the recipe's similarity or baseline to a network in place; freeze what does not train."""
    head = head_name(network)
    if recipe.similarity is not None and not converted:
        network = convert(network, recipe.similarity, where=recipe.where, inplace=True)
    baseline = with_baseline(network, recipe.baseline, recipe.where)
    norms = [m for m in network.modules() if isinstance(m, NORMS) and list(m.parameters())]
    named = {"M": [], "head": [head], "norm": norms, "bias": ["*.bias"]}
    named |= {"baseline": baseline, "all": ["*"]}
    if recipe.train == "nothing":
        return freeze_backbone(network, norm=recipe.norm_mode, train=()).requires_grad_(False)
    parts = recipe.train.split("+")
    if "norm" in parts and not norms:
        raise ValueError(f"`train` must not name norm for a network without, got {recipe.train!r}")
    trained = [part for word in parts for part in named[word]]
    return freeze_backbone(network, norm=recipe.norm_mode, train=trained)


@dataclass(frozen=True)
class AdaptationTask(ClassificationTask):
    """Train a pretrained network to classify other images; see `Task`."""

    RUN: ClassVar[type[Run]] = AdaptationRun
    HELP: ClassVar[str] = HELP

    recipe: AdaptationRecipe
    whole: Dataset | None = None
    """The data set from which every seed draws the few images of each class."""

    @property
    def digest(self) -> str:
        return (self.whole or self.dataset).digest

    @classmethod
    def load(cls, recipe: Any, root: str | Path, progress: ProgressCallback | None = None) -> Self:
        """The task of a recipe, its images from `root` with the backbone's size and channels.

        A network of timm takes the channels of the images if those are not grey, unless the recipe
        has a number.
        """
        asked = recipe.channels
        if recipe.channels is None or (recipe.dataset in IN_PLACE and recipe.image_size is None):
            recipe = _resolve_backbone(recipe)
        if recipe.pretrained_source.is_run:  # The run may go on in another working directory.
            recipe = replace(recipe, backbone=str(Path(recipe.backbone).absolute()))
        task = super().load(recipe, root, progress)
        have = task.images.shape[0]
        if asked is None and have != 1 and recipe.pretrained_source.takes_any_channels:
            recipe = replace(recipe, channels=have)
            task = replace(task, recipe=replace(task.recipe, channels=have))
        train, test = (_with_channels(p, recipe) for p in (task.dataset.train, task.dataset.test))
        task = cls.of_dataset(task.recipe, replace(task.dataset, train=train, test=test))
        return task if recipe.lr or recipe.train == "nothing" else task.with_own_rate()

    @classmethod
    def of_dataset(cls, recipe: AdaptationRecipe, whole: Dataset) -> Self:
        """The task on a data set, or on the few images of each class that the seed draws."""
        dataset = whole
        if recipe.per_class is not None:
            few = _few_per_class(whole.train, recipe.per_class, recipe.seed)
            dataset = replace(whole, train=few)
        return cls(fit_recipe(recipe, dataset), dataset, whole)

    def with_own_rate(self) -> Self:
        """The task with the learning rate that `find_rate` finds on its images."""
        self.check_images()
        recipe, (model, kept, converted) = self.recipe, self._load_backbone()
        network, images = adapt_network(model, recipe, converted).train(), self.training_split()[0]
        rate = find_rate(network, images, self.preprocess(), recipe, new_classifier=not kept)
        return replace(self, recipe=replace(recipe, lr=rate))

    def _load_backbone(self) -> Pretrained:
        """The backbone, checked to take the images."""
        channels, size, _ = self.images.shape
        found = self.recipe.load_backbone(
            self.images.classes, in_channels=channels, image_size=size
        )
        _check_outputs(found.model, self.images)
        return found

    @classmethod
    def check_recipe(cls, recipe: Any) -> None:
        require_library(recipe.baseline)
        recipe.pretrained_source.check(recipe)

    def check_start(self) -> dict[str, Any]:
        super().check_start()
        recipe, (model, kept, converted) = self.recipe, self._load_backbone()
        head, state = head_name(model), model.state_dict()
        own = {key: t for key, t in state.items() if kept or not key.startswith(f"{head}.")}
        source = recipe.pretrained_source
        start = start_facts(source.finished_run()) if source.is_run else None
        name = recipe.backbone if start is None else start["recipe"]
        facts = {"name": name, "parameters": parameters(model)}
        facts |= {"head": "kept" if kept else "new", "digest": state_digest(own)}
        network = adapt_network(model, recipe, converted)
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        classifier = (
            f"{'its' if kept else 'a new'} classifier of {len(self.images.classes)} classes"
        )
        print_notice(
            f"{recipe.backbone} with {classifier}, sha256 {facts['digest'][:12]}; {trained:,} of "
            f"{parameters(model):,} parameters train"
        )
        if self._backbone_preprocess():
            print_notice(
                f"pixels are normalised as for {recipe.backbone}; --inputs is for files of weights"
            )
        if not kept and not recipe.trains_head:
            more = "head" if recipe.train == "nothing" else f"{recipe.train}+head"
            print_notice(f"Warning: the classifier is new, and stays random; --train {more}")
        return {"backbone": facts | {"trained": trained}, "start": start}

    def preprocess(self) -> Preprocess:
        return self._backbone_preprocess() or super().preprocess()

    def _backbone_preprocess(self) -> Preprocess | None:
        """How the backbone was trained; None if that is unknown, or of other channels."""
        usual = self.recipe.pretrained_source.pretrained_input(self.recipe).preprocess
        return usual if usual and len(usual.mean) == self.images.shape[0] else None

    def finish_run(self, run: Run, state: TrainingState, runtime: Runtime) -> dict[str, Any]:
        scores = super().finish_run(run, state, runtime)
        with content_errors(run.path / ENVIRONMENT):
            backbone = read_facts(run.path / ENVIRONMENT)["backbone"]
            kept, trained = backbone["head"] == "kept", backbone["trained"]
        model = state.model
        inside = {id(p) for m in similarities_of(model) for p in m.parameters()}
        names = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in inside]
        if not kept:
            names.append(head_name(run.build(similarity=None)))
        if self.recipe.norm_mode == "train" and any("running" in k for k in model.state_dict()):
            names.append("*running*")
        file, size = run.path / ADAPTER, 0
        if inside or names:
            size = distributed.by_first(lambda: save_adapter(model, file, names).stat().st_size)
        return scores | {"trained": trained, "bytes": size}

    @staticmethod
    def result_text(run: Run, summary: dict[str, Any]) -> str:
        text, file = ClassificationTask.result_text(run, summary), run.path / ADAPTER
        if not file.exists():
            return text
        scores, _, folder = text.rpartition("\n")
        size = f"{summary['bytes'] / 1000:,.1f} kB"
        trained = f"{summary['trained']:,} parameters trained, in {file}, {size}"
        return f"{scores}\n{trained}\n{folder}"


def _resolve_backbone(recipe: AdaptationRecipe) -> AdaptationRecipe:
    """The recipe with its backbone's sizes, and absolute paths so that it resumes anywhere."""
    usual = recipe.pretrained_source.pretrained_input(recipe)
    fields: dict[str, Any] = {"channels": recipe.channels or usual.channels, **usual.fields}
    if recipe.dataset in IN_PLACE and recipe.image_size is None:
        print_notice(f"images are resized to {usual.image_size}x{usual.image_size} (--image-size)")
        fields["image_size"] = usual.image_size
    for name in ("backbone", "weights"):
        path = getattr(recipe, name)
        if path and Path(path).exists():
            fields[name] = str(Path(path).absolute())
    return replace(recipe, **fields)


def _few_per_class(images: ImageSet, each: int, seed: int) -> ImageSet:
    """`each` images of every class, or all of a class that has fewer."""
    have = images.labels.bincount(minlength=len(images.classes)).tolist()
    few, _ = split_off(images, [max(0, count - each) for count in have], seed)
    return few


def _with_channels(images: ImageSet, recipe: AdaptationRecipe) -> ImageSet:
    """The images, grey ones repeated to the number of channels that the backbone takes."""
    have, wanted = images.shape[0], recipe.channels
    if wanted is None or have == wanted:
        return images
    if have != 1 or not isinstance(images, Images):
        raise ValueError(
            f"`backbone` must take images of {have} channels, got {recipe.backbone} of {wanted}"
        )
    return replace(images, pixels=images.pixels.repeat(1, wanted, 1, 1))


@torch.no_grad()
def _check_outputs(model: nn.Module, images: ImageSet) -> None:
    """Raise a `RunError` unless the network returns one logit per class for such images."""
    wanted = (2, len(images.classes))
    try:
        with evaluation_mode(model):
            shape = tuple(model(torch.zeros(2, *images.shape)).shape)
        trained = deepcopy(model).train()(torch.zeros(2, *images.shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise RunError(f"the backbone does not take {images.shape}: {error}") from error
    if shape != wanted:
        raise RunError(f"the backbone must return {wanted} for two images, got {shape}")
    if not isinstance(trained, Tensor):
        raise RunError(
            f"the backbone must return one tensor in training, too, got {type(trained).__name__}"
        )

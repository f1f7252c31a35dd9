"""Adapting a pretrained network to other images: its similarities, its head, or all of it."""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from neural_similarity.conversion import head_name, save_adapter, similarities_of
from neural_similarity.lab.data import IN_PLACE, Dataset, Images, ImageSet, Preprocess
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.data.images import split_off
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.tasks.adaptation_recipe import (
    AdaptationRecipe,
    AdaptationRun,
    adapt_network,
)
from neural_similarity.lab.tasks.backbone import Pretrained
from neural_similarity.lab.tasks.baselines import require_library
from neural_similarity.lab.tasks.classification import ClassificationTask, fit_recipe, guessing_text
from neural_similarity.lab.tasks.own_rate import find_rate, new_head_fields
from neural_similarity.lab.train import Run, RunError, Runtime, distributed, unpack_correct
from neural_similarity.lab.train.checkpoint import TrainingState, state_digest
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts, start_facts
from neural_similarity.models import parameters
from neural_similarity.nn import evaluation_mode

HELP = """Adapt a pretrained network: nsim train adapt --backbone WORD --data FOLDER

examples:
  nsim train adapt --backbone timm:resnet18 --data flowers
  nsim train adapt --backbone torchvision:resnet50 --data flowers --train M+norm --where "layer4.*"
  nsim train adapt --backbone runs/cifar10-cnn-seed1 --data flowers --similarity static-diagonal
  nsim train adapt --backbone timm:resnet18 --data flowers --train head          the linear probe
  nsim train adapt --backbone resnet20.safetensors --model resnet20 --data flowers --train M+all
  nsim train --resume runs/adapt-seed0      continue exactly"""
ADAPTER = "adapter.safetensors"


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
        """The task with the learning rates that are found on its images."""
        self.check_images()
        recipe, (model, kept, converted) = self.recipe, self._load_backbone()
        network, images = adapt_network(model, recipe, converted).train(), self.training_split()[0]
        arguments = network, images, self.preprocess(), recipe
        fields = {"lr": find_rate(*arguments)} if kept else new_head_fields(*arguments)
        return replace(self, recipe=replace(recipe, **fields))

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

    @staticmethod
    def failure(run: Any, summary: dict[str, Any]) -> str | None:
        """That it has learned nothing, though something was trained."""
        if run.recipe.train == "nothing":
            return None
        tested = len(unpack_correct(summary["test_correct"]))
        accuracy = summary["test_balanced_accuracy"]
        return guessing_text(accuracy, len(run.classes), tested, run.recipe.steps)


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

"""Pretrained networks by name: timm:NAME, torchvision:NAME, a file of weights, a run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from neural_similarity import models
from neural_similarity.choices import import_optional, nearest_name
from neural_similarity.conversion import check_finite, convert, fold, head_name
from neural_similarity.files import open_file, regular_file
from neural_similarity.lab.data import IN_PLACE, Preprocess
from neural_similarity.lab.data.transforms import IMAGENET_STATISTICS
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.classifiers import require_one_classifier, with_classes
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import (
    Run,
    build_network,
    command_of,
    load_network,
    read_run,
    require_finished,
    usual_checkpoint,
)
from neural_similarity.lab.train.weights import tensors_alone
from neural_similarity.nn import format_similarity, is_dynamic

TIMM, TORCHVISION = "timm:", "torchvision:"
SOURCES = "timm:NAME, torchvision:NAME, a file of weights (with `model`), or a run folder"


class PretrainedInput(NamedTuple):
    """The input that a backbone was trained on."""

    channels: int
    image_size: int
    preprocess: Preprocess | None = None
    """None if it is unknown."""
    fields: Mapping[str, Any] = {}
    """Fields of the recipe that identify the network among `ns.models`."""


class Pretrained(NamedTuple):
    """A network with its weights."""

    model: nn.Module
    kept: bool
    """Whether the classifier has its pretrained weights; else it is new."""
    converted: bool = False
    """Whether it already has the recipe's similarity, as a run learned it."""


@dataclass(frozen=True)
class Backbone:
    """A pretrained network.

    Args:
        source: its name, see the module's docstring.
        weights: file of weights to load in place of the library's.
        pretrained: whether timm's and torchvision's networks come with weights.
        classifier: "new"; "kept", its own; or "auto", by the names of the classes.
        keeps_unnamed: whether "auto" keeps a classifier of matching size with unnamed classes.
        where: layers that have the similarity in a run that is trained on, all by default.
        kinds: kinds of runs that a run folder may hold.
    """

    source: str
    weights: str | None = None
    pretrained: bool = True
    classifier: str = "auto"
    keeps_unnamed: bool = True
    where: str | None = None
    kinds: tuple[type[Run], ...] = (Run, FewShotRun)

    @property
    def _is_named(self) -> bool:
        return self.source.startswith((TIMM, TORCHVISION))

    @property
    def takes_any_channels(self) -> bool:
        """Whether the network can be built for images of any number of channels."""
        return self.source.startswith(TIMM) and self.weights is None

    @property
    def _library_name(self) -> str:
        return self.source.partition(":")[2]

    def _require_found(self) -> None:
        if not (self._is_named or (self.source and Path(self.source).exists())):
            raise ValueError(f"`backbone` must be {SOURCES}, got {self.source!r}")

    def pretrained_input(self, recipe: TrainingRecipe) -> PretrainedInput:
        """The input that it was trained on; a file is of the recipe's network."""
        self._require_found()
        if self.source.startswith(TIMM):
            config = _library_of(self.source).get_pretrained_cfg(self._library_name)
            if config is None:
                return PretrainedInput(3, 224, Preprocess(*IMAGENET_STATISTICS))
            channels, size, _ = config.input_size
            return PretrainedInput(channels, size, Preprocess(config.mean, config.std))
        if self.source.startswith(TORCHVISION):
            weights = _library_of(self.source).get_model_weights(self._library_name)
            shown = weights.DEFAULT.transforms()
            size = getattr(shown, "crop_size", [224])[0]
            mean, std = (
                getattr(shown, key, IMAGENET_STATISTICS[i]) for i, key in enumerate(("mean", "std"))
            )
            return PretrainedInput(3, size, Preprocess(tuple(mean), tuple(std)))
        if self.is_run:
            run = self.finished_run()
            fields = ("model", "width", "variant", "norm_momentum", "norm_eps")
            known = {field: getattr(run.recipe, field) for field in fields}
            return PretrainedInput(run.channels, run.image_size, run.preprocess, known)
        kernels = (t for t in _read_tensors(Path(self.source)).values() if t.dim() == 4)
        first = next(kernels, torch.empty(1, 3, 1, 1))
        return PretrainedInput(first.shape[1], models.usual_sizes(recipe.model)[2])

    def check(self, recipe: Any) -> None:
        """Check, without images, that it exists, takes the recipe's channels, and fits its weights.

        Raises:
            RunError: the weights cannot be read, or are another network's.
            ValueError: there is no such network, file or run, or it takes other channels.
        """
        usual = self.pretrained_input(recipe)
        if self._is_named or self.is_run:
            for name in ("model", "width"):
                known = {type(recipe)().__dict__[name], usual.fields.get(name)}
                wanted = f"be left out for {self.source}, which is a network of its own"
                recipe._require_field(getattr(recipe, name) in known, name, wanted)
        taken = self.takes_any_channels and (recipe.channels or 1) > 1
        if recipe.channels not in (None, usual.channels) and not taken:
            raise ValueError(
                f"`channels` must be {usual.channels}, as {self.source} takes, got "
                f"{recipe.channels}"
            )
        sized = recipe.image_size is not None or recipe.dataset in IN_PLACE
        if not sized or (self.weights is None and self._is_named):
            return  # The data decide the size later, and downloaded weights fit their network.
        recipe = replace(recipe, **usual.fields)
        channels = recipe.channels or usual.channels
        sizes = {"in_channels": channels, "image_size": recipe.image_size or usual.image_size}
        with torch.random.fork_rng(devices=[]):
            replace(self, classifier="new").load_pretrained(recipe, ("one", "another"), **sizes)

    def plain_network(self, recipe: TrainingRecipe, classes: int, **sizes: int) -> nn.Module:
        if self.source.startswith(TIMM):
            model = _library_of(self.source).create_model(
                self._library_name, num_classes=classes, in_chans=sizes.get("in_channels", 3)
            )
            require_one_classifier(model, self.source, classes)
            # timm draws some classifiers by their number of classes: with few, logits are in the
            # tens.
            if isinstance(head := model.get_submodule(head_name(model)), nn.Linear | nn.Conv2d):
                head.reset_parameters()
            return model
        if self.source.startswith(TORCHVISION):
            library = _library_of(self.source)
            return with_classes(library.get_model(self._library_name, weights=None), classes)
        return build_network(recipe, classes, similarity=None, **sizes)

    def load_pretrained(
        self, recipe: TrainingRecipe, classes: tuple[str, ...], **sizes: int
    ) -> Pretrained:
        """The network with its weights, including the classifier's if its classes are the same.

        A similarity that a run learned stays if it is the recipe's and in the same layers; any
        other one is folded.
        """
        self._require_found()
        plain = self.plain_network(recipe, len(classes), **sizes)
        head = head_name(plain)
        similar = self._copy_with_similarity(plain, recipe)
        state, same_classes = self._state_to_load(similar, classes, sizes.get("in_channels", 3))
        if state is None:
            return Pretrained(plain, False)
        converted = similar is not None and state.keys() == similar.state_dict().keys()
        model = similar if similar is not None and converted else plain
        own = model.state_dict()
        classifier = [key for key in own if key.startswith(f"{head}.")]
        fits = all(key in state and state[key].shape == own[key].shape for key in classifier)
        if self.classifier == "kept" and not fits:
            raise RunError(f"the classifier of {self.source} does not have {len(classes)} classes")
        matches = self.keeps_unnamed if same_classes is None else same_classes
        kept = fits and (self.classifier == "kept" or (matches and self.classifier == "auto"))
        taken = {key: t for key, t in state.items() if kept or not key.startswith(f"{head}.")}
        try:
            _check_tensors(taken, own)
            wrong = model.load_state_dict(taken, strict=False)
        except (RuntimeError, ValueError) as error:
            raise self._misfit(_first_line(error)) from error
        lacking = [key for key in wrong.missing_keys if kept or key not in classifier]
        for key in (*lacking, *wrong.unexpected_keys):
            raise self._misfit(f"{key} is in {'the network' if key in lacking else 'them'} only")
        if converted and recipe.similarity:
            # Once more, as `convert` remembers the weights that it sees as the backbone's.
            plain.load_state_dict(taken, strict=False)
            model = convert(plain, recipe.similarity, where=self.where)
            model.load_state_dict(taken, strict=False)
        return Pretrained(model, kept, converted)

    def _misfit(self, reason: str) -> RunError:
        """The error for weights of another network, with the options that name the right one."""
        theirs = "--backbone" if self.weights else "--model and --width"
        hint = "" if self.is_run else f"; name the network that they are of by {theirs}"
        return RunError(f"the weights of {self.weights or self.source} do not fit: {reason}{hint}")

    def _copy_with_similarity(self, model: nn.Module, recipe: TrainingRecipe) -> nn.Module | None:
        """A copy of the network with the recipe's similarity if the run has the same one."""
        similarity = recipe.similarity
        if (
            similarity is None
            or not self.is_run
            or self.finished_run().recipe.similarity != similarity
        ):
            return None
        return convert(model, similarity, where=self.where)

    def _state_to_load(
        self, similar: nn.Module | None, classes: tuple[str, ...], channels: int
    ) -> tuple[Mapping[str, Tensor] | None, bool | None]:
        """The weights; a run's similarity is folded unless `similar` has the same parameters.

        Returns:
            The weights, and whether their classifier is of these classes; None if unknown.
        """
        if self.weights is not None:
            return _read_tensors(Path(self.weights)), None
        if self._is_named:
            return (self._downloaded_weights(channels) if self.pretrained else None), None
        if not self.is_run:
            return _read_tensors(Path(self.source)), None
        run = self.finished_run()
        trained = load_network(run, usual_checkpoint(run))
        if similar is None or similar.state_dict().keys() != trained.state_dict().keys():
            if any(map(is_dynamic, trained.modules())):
                raise RunError(
                    f"{run.path} cannot be a backbone of another similarity: it has dynamic ones, "
                    "which cannot be folded; go on with --similarity "
                    f"{format_similarity(run.recipe.similarity)!r}"
                )
            trained = fold(trained)
        return trained.state_dict(), run.classes == classes

    def _downloaded_weights(self, channels: int) -> dict[str, Tensor]:
        """The library's pretrained weights, which it caches on the disk.

        timm repeats the kernels of its first layer for other numbers of channels.
        """
        try:
            if self.source.startswith(TIMM):
                network = _library_of(self.source).create_model(
                    self._library_name, pretrained=True, in_chans=channels
                )
            else:
                network = _library_of(self.source).get_model(self._library_name, weights="DEFAULT")
        except Exception as error:  # whatever the libraries download with raises
            raise RunError(
                f"the weights of {self.source} cannot be downloaded: {_first_line(error)}; "
                "give a file with --weights"
            ) from error
        return network.state_dict()

    @property
    def is_run(self) -> bool:
        return bool(self.source) and not self._is_named and Path(self.source).is_dir()

    def finished_run(self) -> Run:
        command = command_of(Path(self.source))
        run = read_run(self.source, next((k for k in self.kinds if k.COMMAND == command), Run))
        require_finished(run)
        inner = getattr(run.recipe, "backbone", "")
        if inner.startswith((TIMM, TORCHVISION)):
            raise RunError(
                f"{run.path} cannot be a backbone: it is {inner} adapted; name that one, with "
                "the run's exported weights by --weights"
            )
        return run


def _library_of(word: str) -> Any:
    """timm, or torchvision's models; they must have the network."""
    kind, _, name = word.partition(":")
    library = import_optional(kind, word, "adapt")
    if kind == "timm":
        (plain, _, tag), names = name.partition("."), library.list_models
        known = name in library.list_pretrained() if tag else library.is_model(plain)
        if tag and library.is_model(plain):  # the network is known, these weights of it are not
            names, plain = library.list_pretrained, name
    else:
        library = library.models
        names, plain = partial(library.list_models, module=library), name
        known = name in names()
    if not known:
        raise ValueError(
            f"`backbone` must be a network of {kind}, got {name!r}; nearest: "
            f"{nearest_name(plain, names())}"
        )
    return library


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file; no code in the file is executed."""
    try:
        if path.suffix == ".safetensors":
            return load_file(regular_file(path))
        with tensors_alone(), open_file(path) as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
        content = content.get("state_dict", content.get("model", content))
        return {str(key): tensor for key, tensor in content.items() if isinstance(tensor, Tensor)}
    except Exception as error:  # a damaged file makes readers raise almost anything
        raise RunError(
            f"{path} must hold weights, but cannot be read: {_first_line(error)}"
        ) from error


def _check_tensors(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Check that tensors are finite and real, and floating-point where the network's own are."""
    for name in own.keys() & tensors.keys():
        tensor, dtype = tensors[name], own[name].dtype
        if tensor.is_complex() or tensor.is_floating_point() != dtype.is_floating_point:
            raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")
        check_finite(name, tensor)


def _first_line(error: Exception) -> str:
    """The first line that says something: torch's own heading ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
    return next((line for line in lines if not line.endswith(":")), lines[0])

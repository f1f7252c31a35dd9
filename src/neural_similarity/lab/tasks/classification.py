"""Image classification: cross-entropy on batches, scored on a test set."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from neural_similarity import models, visualize
from neural_similarity.lab import data
from neural_similarity.lab.data import (
    Augment,
    Batches,
    Dataset,
    FileBatches,
    ImageFiles,
    ImageSet,
    Place,
    Preprocess,
)
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.train import (
    Recipe,
    Run,
    Runtime,
    Scores,
    distributed,
    evaluate,
    pack_correct,
)
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.loop import Judge
from neural_similarity.lab.train.objective import Classification, Objective
from neural_similarity.lab.train.progress import notice
from neural_similarity.lab.train.recipe import AnyRecipe
from neural_similarity.lab.train.run import load_network

PICTURED = 2
"""Training images on which dynamic similarities are drawn."""


@dataclass(frozen=True)
class ClassificationTask:
    """Train a network to classify images; see `Task`."""

    RUN: ClassVar[type[Run]] = Run

    recipe: Recipe
    dataset: Dataset

    @classmethod
    def load(cls, recipe: Recipe, root: str | Path, progress: Progress | None = None) -> Self:
        """The task of a recipe, with its data from `root`."""
        sizes = {"image_size": recipe.image_size, "workers": recipe.workers}
        usual = models.usual_sizes(recipe.model)[2]
        dataset = data.load(recipe.dataset, root=root, otherwise=usual, **sizes)
        return cls(fitted(recipe, dataset), dataset)

    @classmethod
    def check_recipe(cls, recipe: Recipe) -> None:
        """Check nothing: its fields have been checked."""

    @property
    def digest(self) -> str:
        """The digest of the whole data set."""
        return self.dataset.digest

    @property
    def images(self) -> ImageSet:
        return self.dataset.train

    def check(self) -> dict[str, Any]:
        """Check that images are square and have at least two classes; return no facts."""
        _, height, width = self.images.shape
        if height != width:
            raise ValueError(
                f"images must be square, or `image_size` be given to cut them, got {height}x{width}"
            )
        if len(self.images.classes) < 2:
            raise ValueError(f"there must be at least two classes, got {self.images.classes}")
        notice(self.dataset.described)
        return {}

    def preprocess(self) -> Preprocess:
        """The preprocessing, fitted to the training images without those held out."""
        return Preprocess.of(self.split()[0], self.recipe.inputs)

    def split(self) -> tuple[ImageSet, ImageSet | None]:
        """The training set: the images to train on, and those held out for validation."""
        if not self.recipe.validation:
            return self.images, None
        return data.hold_out(self.images, self.recipe.validation, self.recipe.seed)

    def objective(self, run: Run, runtime: Runtime) -> Objective:
        """Cross-entropy and penalties on the recipe's batches."""
        return Classification(run.recipe, runtime, batches_of(self.split()[0], run, runtime))

    def judge(self, run: Run, runtime: Runtime) -> Judge | None:
        """The function that validates a network on the held-out images: loss and accuracy."""
        _, validation = self.split()
        if validation is None:
            return None

        def judge(model: nn.Module) -> dict[str, float]:
            scores = evaluate(model, validation, run.preprocess, runtime)
            return {"validation_loss": scores.loss, "validation_accuracy": scores.accuracy}

        return judge

    def finish(self, run: Run, state: State, runtime: Runtime) -> dict[str, Any]:
        """Draw the similarities and score the test set."""
        pixels = self.images.head(PICTURED)
        distributed.by_first(lambda: draw_similarities(run, state.model, pixels, run.plots))
        images = run.recipe.steps * run.recipe.batch_size
        scores = evaluate(state.model, self.dataset.test, run.preprocess, runtime)
        return told(scores) | {"images_per_second": images / state.seconds}

    def best(self, run: Run, state: State, runtime: Runtime) -> dict[str, Any]:
        """Accuracy on the held-out images, and the scores of the test set."""
        model = runtime.place(load_network(run, "best"))
        scores = evaluate(model, self.dataset.test, run.preprocess, runtime)
        return {"validation_accuracy": state.best} | told(scores)


def fitted(recipe: AnyRecipe, dataset: Dataset) -> AnyRecipe:
    """The recipe with the size of a folder's resized images, and a batch that the images fill."""
    size, count = dataset.train.shape[1], max(1, len(dataset.train) - recipe.validation)
    if recipe.dataset == data.FOLDER and recipe.image_size is None and dataset.resized:
        recipe = replace(recipe, image_size=size)
    if recipe.batch_size > count:
        count = max(1, count // distributed.size()) * distributed.size()
        notice(f"batches have {count} images, as many as there are, not {recipe.batch_size}")
        recipe = replace(recipe, batch_size=count)
    return recipe


def batches_of(images: ImageSet, run: Run, runtime: Runtime) -> Batches | FileBatches:
    """The batches of a run, functions of the recipe and the images."""
    recipe = run.recipe
    place = Place(
        device=runtime.device,
        channels_last=runtime.channels_last,
        share=distributed.share(recipe.batch_size),
    )
    options: dict[str, Any] = {"preprocess": run.preprocess, "seed": recipe.seed, "place": place}
    if isinstance(images, ImageFiles):
        return FileBatches(images, recipe.batch_size, flip=recipe.flip, **options)
    augment = Augment(crop=recipe.crop, flip=recipe.flip, padding=recipe.padding)
    return Batches(images, recipe.batch_size, augment=augment, **options)


def draw_similarities(run: Run, model: nn.Module, pixels: Tensor, folder: Path) -> list[Path]:
    """Draw the learned similarity of every layer, the dynamic ones on a few images.

    Args:
        run: gives the preprocessing.
        model: a trained network.
        pixels: the images, uint8.
        folder: where the PNG files go.
    """
    device = next(model.parameters()).device
    inputs = run.preprocess(pixels).to(device)
    return visualize.draw(model.eval(), inputs, folder)


def told(scores: Scores) -> dict[str, Any]:
    """Scores in the format of summaries."""
    top5 = scores.top5_error_percent
    return {
        "test_accuracy": scores.accuracy,
        "test_error_percent": scores.error_percent,
        **({} if top5 is None else {"test_top5_error_percent": top5}),
        "test_loss": scores.loss,
        "test_correct": pack_correct(scores.correct),
    }

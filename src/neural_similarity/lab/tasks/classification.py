"""Image classification: cross-entropy on batches, scored on a test set."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, Self, TypeVar

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
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.terminal import one_line
from neural_similarity.lab.train import (
    Recipe,
    Run,
    Runtime,
    Scores,
    choose_runtime,
    distributed,
    evaluate_model,
    pack_correct,
)
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.loop import Validate
from neural_similarity.lab.train.objective import Classification, Objective
from neural_similarity.lab.train.peers import report_dead_processes
from neural_similarity.lab.train.progress import format_clock, print_notice
from neural_similarity.lab.train.run import checkpoint_facts, load_network, read_facts
from neural_similarity.lab.train.task import Scoring, Task
from neural_similarity.nn import Dynamic

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
BY_CLASS = "test_class_accuracies"
"""The entry of a summary that holds the accuracy of every class."""
ENOUGH_STEPS = 60
"""Updates after which a network should be better than guessing."""
SHOWN = 10
"""Classes that a text lists, the worst ones first."""
PICTURED = 2
"""Training images on which dynamic similarities are drawn."""


HELP = """Train a network into a run folder: nsim train [RECIPE] [--field value ...]

examples:
  nsim train                                     the quick start
  nsim train cifar10-static-dns --data data --seed 1
  nsim train cifar10-cnn --budget 0.125 --validation 5000
  nsim train cifar10-dynamic-dns --variant released --data data
  nsim train imagenet-resnet18-dynamic-dns --data ILSVRC2012
  nsim train --similarity "Static(Diagonal())" --out runs/diagonal
  nsim train --config runs/quickstart-seed0 --seed 1
  nsim train --dataset folder --data photos      one subfolder per class
  nsim train mini-cnn4 --help                    options of few-shot recipes
  nsim train --resume runs/quickstart-seed0      continue exactly"""
SCORING_HELP = """Score a run's network on the test set again.

examples:
  nsim evaluate runs/quickstart-seed0
  nsim evaluate runs/cifar10-cnn-seed0 --checkpoint best --data data
  nsim evaluate runs/mini-cnn4-seed1 --help     what a few-shot run takes"""


@dataclass(frozen=True, kw_only=True)
class ImageScoring(Scoring):
    """Options of `nsim evaluate`."""

    checkpoint: Literal["last", "best"] = "last"
    """The last checkpoint, or the best on held-out images."""


@dataclass(frozen=True)
class ClassificationTask(Task[Run, Recipe]):
    """Train a network to classify images; see `Task`."""

    RUN: ClassVar[type[Run]] = Run
    HELP: ClassVar[str] = HELP
    SCORING: ClassVar[type[Scoring]] = ImageScoring
    SCORING_HELP: ClassVar[str] = SCORING_HELP

    recipe: Recipe
    dataset: Dataset

    @classmethod
    def load(
        cls, recipe: Recipe, root: str | Path, progress: ProgressCallback | None = None
    ) -> Self:
        dataset = data.load_dataset(
            recipe.dataset,
            root=root,
            image_size=recipe.image_size,
            workers=recipe.workers,
            fallback_size=models.usual_sizes(recipe.model)[2],
            draft=recipe.draft,
        )
        return cls(fit_recipe(recipe, dataset), dataset)

    @property
    def digest(self) -> str:
        return self.dataset.digest

    @property
    def images(self) -> ImageSet:
        return self.dataset.train

    def check_images(self) -> None:
        """Check that the images are square and of two classes at least.

        Raises:
            ValueError: they are not.
        """
        _, height, width = self.images.shape
        if height != width:
            raise ValueError(
                f"images must be square, got {height}x{width}; `image_size` crops them"
            )
        if len(self.images.classes) < 2:
            raise ValueError(f"there must be at least two classes, got {self.images.classes}")

    def check_start(self) -> dict[str, Any]:
        self.check_images()
        print_notice(self.dataset.describe_sizes)
        print_notice(augmentation_text(self.recipe))
        return {}

    def preprocess(self) -> Preprocess:
        return Preprocess.for_images(self.training_split()[0], self.recipe.inputs)

    def training_split(self) -> tuple[ImageSet, ImageSet | None]:
        """The training set: the images to train on, and those held out for validation."""
        if not self.recipe.validation:
            return self.images, None
        return data.hold_out(self.images, self.recipe.validation, self.recipe.seed)

    def objective(self, run: Run, runtime: Runtime) -> Objective:
        images, _ = self.training_split()
        batches = batches_of(images, run, runtime, balanced=self.recipe.balanced)
        dynamic = isinstance(self.recipe.similarity, Dynamic)
        if self.recipe.compile and dynamic and runtime.device.type == "cpu":
            print_notice("nsim: --compile slows a dynamic similarity down on a CPU")
        return Classification(runtime, batches, self.recipe, self.recipe.compile)

    def validation(self, run: Run, runtime: Runtime) -> Validate | None:
        _, validation = self.training_split()
        if validation is None:
            return None

        def validate_model(model: nn.Module) -> dict[str, float]:
            scores = evaluate_model(model, validation, run.preprocess, runtime)
            return {"validation_loss": scores.loss, "validation_accuracy": scores.accuracy}

        return validate_model

    def finish_run(self, run: Run, state: TrainingState, runtime: Runtime) -> dict[str, Any]:
        pixels = self.images.head(PICTURED)
        distributed.by_first(lambda: draw_similarities(run, state.model, pixels, run.plots))
        images = run.recipe.steps * run.recipe.batch_size
        scores = self._test_scores(run, state.model, runtime)
        return self._score_facts(scores) | {"images_per_second": images / state.seconds}

    def best_summary(self, run: Run, state: TrainingState, runtime: Runtime) -> dict[str, Any]:
        model = runtime.place_model(load_network(run, "best"))
        scores = self._test_scores(run, model, runtime)
        return {"validation_accuracy": state.best} | self._score_facts(scores)

    def _test_scores(self, run: Run, model: nn.Module, runtime: Runtime) -> Scores:
        """Scores on the test set, with a warning if one class takes nearly all answers."""
        test = self.dataset.test
        scores = evaluate_model(model, test, run.preprocess, runtime)
        if (only := scores.only_answer) is not None:
            taken = (scores.answers == only).sum().item()
            print_notice(
                f"warning: {taken:,} of {len(test):,} test images are taken for "
                f"{one_line(test.classes[only])}: compare the balanced accuracy; --balanced True "
                "draws all classes equally often"
            )
        return scores

    def _score_facts(self, scores: Scores) -> dict[str, Any]:
        """Scores in the format of summaries."""
        top5, by_class = scores.top5_error_percent, scores.class_accuracies(self.images.classes)
        return {
            "test_accuracy": scores.accuracy,
            "test_balanced_accuracy": fmean(by_class.values()),
            "test_error_percent": scores.error_percent,
            **({} if top5 is None else {"test_top5_error_percent": top5}),
            "test_loss": scores.loss,
            BY_CLASS: by_class,
            "test_correct": pack_correct(scores.correct),
        }

    def evaluate(self, run: Run, scoring: ImageScoring, device: str) -> tuple[dict[str, Any], str]:
        runtime = choose_runtime(device, scoring.precision, run.recipe.channels_last)
        model = load_network(run, scoring.checkpoint)
        distributed.join_processes(runtime.device)
        with report_dead_processes():
            scores = self._test_scores(run, runtime.place_model(model), runtime)
        checkpoint = checkpoint_facts(run, scoring.checkpoint) | {"recipe": run.name}
        facts = self._score_facts(scores)
        text = (
            f"{score_text(scores)} on {len(self.dataset.test):,} test images, in "
            f"{scoring.precision}\n"
            f"balanced accuracy {100 * facts['test_balanced_accuracy']:.2f} %, by class "
            f"{class_text(facts[BY_CLASS])}"
        )
        facts["score_precision"] = scoring.precision
        return {"checkpoint": checkpoint, "scores": facts}, text

    @staticmethod
    def scored_texts(run: Run) -> dict[str, str]:
        with content_errors(run.summary):
            by_class = read_facts(run.summary).get(BY_CLASS)
            return {"accuracy by class": class_text(by_class)} if by_class else {}

    @staticmethod
    def result_text(run: Run, summary: dict[str, Any]) -> str:
        accuracy, speed = 100 * summary["test_accuracy"], summary["images_per_second"]
        text = (
            f"test accuracy {accuracy:.2f} % after {summary['steps']:,} steps in "
            f"{format_clock(summary['seconds'])} ({speed:,.0f} images/s)\n"
        )
        if best := summary.get("best_checkpoint"):
            text += f"best checkpoint on held-out images: {100 * best['test_accuracy']:.2f} %\n"
        return f"{text}run folder {run.path}, pictures in {run.plots}"


def guessing_text(accuracy: float, classes: int, tested: int, steps: int) -> str | None:
    """That an accuracy is no surer than guessing by two standard errors, after enough updates."""
    chance = 1 / classes
    limit = chance + 2 * (chance * (1 - chance) / tested) ** 0.5
    if steps < ENOUGH_STEPS or accuracy > limit:
        return None
    return (
        f"the network has learned nothing: {100 * accuracy:.2f} % where guessing has "
        f"{100 * chance:.2f} %; try a lower --lr, or more images"
    )


def fit_recipe(recipe: AnyRecipe, dataset: Dataset) -> AnyRecipe:
    """The recipe with the size of a folder's resized images, and a batch that the images fill."""
    size, count = dataset.train.shape[1], max(1, len(dataset.train) - recipe.validation)
    if recipe.dataset == data.FOLDER and recipe.image_size is None and dataset.resized:
        recipe = replace(recipe, image_size=size)
    if recipe.batch_size > count:
        count = max(1, count // distributed.process_count()) * distributed.process_count()
        print_notice(f"batches have {count} images, as many as there are, not {recipe.batch_size}")
        recipe = replace(recipe, batch_size=count)
    return recipe


def augmentation_text(recipe: Recipe) -> str:
    """Which random changes training images get."""
    windows = f"moved by up to {recipe.crop} pixels (--crop)" if recipe.crop else "not moved"
    if recipe.dataset == "imagenet":
        windows = "random windows, resized"
    mirrored = "half of them mirrored (--flip False for signs and text)"
    return f"training images: {windows}, {mirrored if recipe.flip else 'none mirrored'}"


def batches_of(
    images: ImageSet, run: Run, runtime: Runtime, *, balanced: bool = False
) -> Batches | FileBatches:
    """The batches of a run, functions of the recipe and the images."""
    recipe = run.recipe
    place = Place(
        device=runtime.device,
        memory_format=runtime.memory_format,
        share=distributed.own_share(recipe.batch_size),
    )
    options: dict[str, Any] = {"preprocess": run.preprocess, "seed": recipe.seed, "place": place}
    options["balanced"] = balanced
    if isinstance(images, ImageFiles):
        return FileBatches(images, recipe.batch_size, flip=recipe.flip, **options)
    names = ("crop", "flip", "flips", "padding")
    augment = Augment(**{name: getattr(recipe, name) for name in names})
    return Batches(images, recipe.batch_size, augment=augment, **options)


def draw_similarities(run: Run, model: nn.Module, pixels: Tensor, folder: Path) -> list[Path]:
    """Draw the learned similarity of every layer, the dynamic ones on a few images."""
    device = next(model.parameters()).device
    inputs = run.preprocess(pixels).to(device)
    return visualize.draw(model.eval(), inputs, folder)


def score_text(scores: Scores) -> str:
    """The scores as a line of text."""
    top5 = scores.top5_error_percent
    return (
        f"accuracy {100 * scores.accuracy:.2f} %, error {scores.error_percent:.2f} %, "
        + ("" if top5 is None else f"top-5 error {top5:.2f} %, ")
        + f"loss {scores.loss:.4f}"
    )


def class_text(accuracies: Mapping[str, float]) -> str:
    """The accuracy of every class, of the worst ten where there are more."""
    worst = sorted(accuracies.items(), key=lambda entry: entry[1])
    shown = ", ".join(f"{one_line(name)} {100 * share:.1f} %" for name, share in worst[:SHOWN])
    return shown + (", ..." if len(worst) > SHOWN else "")

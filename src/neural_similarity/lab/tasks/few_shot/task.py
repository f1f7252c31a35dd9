"""Few-shot learning as a task: episodic training, or pretraining on the base classes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from neural_similarity.lab import data
from neural_similarity.lab.data import ClassSplit, Images, Preprocess
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.classification import batches_of, guessing_text
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate_method
from neural_similarity.lab.tasks.few_shot.evaluation import scored_texts
from neural_similarity.lab.tasks.few_shot.interface import Method
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.objective import Episodes
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe, retraining_recipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun, as_network
from neural_similarity.lab.tasks.few_shot.scoring import SCORING_HELP, TaskScoring, score_run
from neural_similarity.lab.tasks.few_shot.tasks import Sampler, TaskSizes, draw_tasks
from neural_similarity.lab.train import Run, Runtime, read_run
from neural_similarity.lab.train.checkpoint import TrainingState, newest_checkpoint, step_of
from neural_similarity.lab.train.loop import Validate
from neural_similarity.lab.train.objective import Classification, Objective
from neural_similarity.lab.train.progress import format_clock
from neural_similarity.lab.train.run import read_facts, require_finished, start_facts
from neural_similarity.lab.train.task import Scoring, Task

SELECTION_SEED = 1
"""Seed of the validation tasks; test tasks have 0 by default."""
HELP = """Train for few-shot learning: nsim train [RECIPE] [--field value ...]

examples:
  nsim train fewshot-quickstart             about a minute
  nsim train mini-cnn4 --data data --seed 1
  nsim train --retrain runs/mini-cnn4-seed1 on validation classes too, see --retrain
  nsim train mini-meta-static --start runs/mini-cnn4-seed1
  nsim train --resume runs/mini-cnn4-seed1  continue exactly"""


@dataclass(frozen=True)
class FewShotTask(Task[FewShotRun, FewShotRecipe]):
    """Train a network for few-shot learning; see `Task`. Test images are not used."""

    RUN: ClassVar[type[Run]] = FewShotRun
    HELP: ClassVar[str] = HELP
    NAMES_CLASSES: ClassVar[bool] = False
    SCORING: ClassVar[type[Scoring]] = TaskScoring
    SCORING_HELP: ClassVar[str] = SCORING_HELP

    recipe: FewShotRecipe
    split: ClassSplit

    @classmethod
    def load(
        cls, recipe: FewShotRecipe, root: str | Path, progress: ProgressCallback | None = None
    ) -> Self:
        if recipe.start is not None:  # The run may go on in another working directory.
            recipe = replace(recipe, start=str(Path(recipe.start).absolute()))
        size = recipe.image_size
        return cls(
            recipe, data.load_split(recipe.dataset, root, image_size=size, progress=progress)
        )

    @property
    def digest(self) -> str:
        return self.split.digest

    @property
    def images(self) -> Images:
        return self.split.images_of_part(self.recipe.train_on)

    def check_start(self) -> dict[str, Any]:
        check_task_sizes(self.split, self.recipe)
        return {"start": check_start(self.recipe, self.split)}

    def preprocess(self) -> Preprocess:
        if self.recipe.start is not None:
            return read_run(self.recipe.start, FewShotRun).preprocess
        return Preprocess.for_images(self.images, self.recipe.inputs)

    def objective(self, run: FewShotRun, runtime: Runtime) -> Objective:
        if METHODS[run.recipe.method].episodic:
            return Episodes(run.recipe, self.images, run.preprocess, runtime)
        return Classification(runtime, batches_of(self.images, run, runtime))

    def validation(self, run: FewShotRun, runtime: Runtime) -> Validate | None:
        recipe, split = run.recipe, self.split
        if recipe.select_on != "val":
            return None
        drawn = {"seed": SELECTION_SEED, "data": split.digest, "part": "val"}
        tasks = draw_tasks(split.val, recipe.select_sizes, recipe.select_tasks, **drawn)
        queries = len(tasks.sizes.query_labels)

        def validate_model(model: nn.Module) -> dict[str, Any]:
            method = _as_method(model, recipe)
            correct = evaluate_method(
                method, split.val, tasks, preprocess=run.preprocess, runtime=runtime
            )
            accuracy = correct.double().mean().item() / queries
            return {
                "validation_accuracy": accuracy,
                "batch_norm": METHODS[recipe.method].statistics,
            }

        return validate_model

    def finish_run(self, run: FewShotRun, state: TrainingState, runtime: Runtime) -> dict:
        """The number of images; methods are evaluated on test classes by `nsim evaluate`."""
        return {"images": len(self.images)}

    def best_summary(
        self, run: FewShotRun, state: TrainingState, runtime: Runtime
    ) -> dict[str, Any]:
        return {
            "step": step_of(newest_checkpoint(run.best)),
            "validation_accuracy": state.best,
            "batch_norm": METHODS[run.recipe.method].statistics,
        }

    def evaluate(
        self, run: FewShotRun, scoring: TaskScoring, device: str
    ) -> tuple[dict[str, Any], str]:
        require_finished(run)
        return score_run(run, self.split, scoring, device)

    @staticmethod
    def result_text(run: FewShotRun, summary: dict[str, Any]) -> str:
        text = f"{summary['steps']:,} steps in {format_clock(summary['seconds'])}"
        if best := summary.get("best_checkpoint"):
            text += (
                f"; best on validation classes at step {best['step']:,}: "
                f"{100 * best['validation_accuracy']:.2f} %, batch norm by {best['batch_norm']} "
                "statistics"
            )
        return f"{text}\nrun folder {run.path}; nsim evaluate {run.path}"

    @classmethod
    def retrained_recipe(
        cls, run: FewShotRun, start: str | Path | None, load: Callable[[], Any]
    ) -> tuple[FewShotRecipe, dict[str, Any]]:
        summary = read_facts(run.summary) if run.summary.exists() else {}
        if "best_checkpoint" not in summary:
            raise RunError(f"{run.path} must be finished and have chosen a step (--select-on val)")
        if run.recipe.start is not None:
            _require_all_classes(start, f"as {run.path} started from {run.recipe.start}")
        split = load().split
        growth = 1 + len(split.val) / len(split.train)
        chosen = {"step": summary["best_checkpoint"]["step"], "growth": growth}
        recipe = retraining_recipe(run.recipe, **chosen)
        return replace(recipe, start=None if start is None else str(start)), chosen

    @staticmethod
    def failure(run: FewShotRun, summary: dict[str, Any]) -> str | None:
        """That no step did better than guessing on validation classes, where those choose it."""
        if "best_checkpoint" not in summary:
            return None
        recipe, accuracy = run.recipe, summary["best_checkpoint"]["validation_accuracy"]
        tested = recipe.select_tasks * recipe.select_ways * recipe.queries
        return guessing_text(accuracy, recipe.select_ways, tested, recipe.steps)

    scored_texts = staticmethod(scored_texts)


def _require_all_classes(start: str | Path | None, why: str) -> None:
    classes = None if start is None else read_run(start, FewShotRun).recipe.train_on
    if classes != "train+val":
        got = "none" if start is None else f"{start}, trained on {classes}"
        raise RunError(f"`start` must be the folder of a run on train+val, {why}, got {got}")


def check_task_sizes(split: ClassSplit, recipe: FewShotRecipe) -> None:
    """Check, before training, that the data have enough classes and images for the tasks.

    Raises:
        ValueError: a part has too few classes, or a class, which the error names, has too few
            images for shots and queries. There must be two test classes, or as many as in training
            if the method learns its initial classifier.
    """
    if METHODS[recipe.method].episodic:
        check_tasks(split, recipe.train_on, recipe.task_sizes)
    if recipe.select_on == "val":
        if recipe.select_ways > len(split.val.classes):
            raise ValueError(
                f"`select_ways` must be at most the number of validation classes, "
                f"{len(split.val.classes)}, got {recipe.select_ways}"
            )
        check_tasks(split, "val", recipe.select_sizes)
    ways = recipe.ways if METHODS[recipe.method].fixed_ways else 2
    check_tasks(split, "test", replace(recipe.task_sizes, ways=ways))


def check_tasks(split: ClassSplit, part: str, sizes: TaskSizes) -> None:
    """Check that a part of the data has enough classes and images for tasks of these sizes."""
    try:
        Sampler(split.images_of_part(part), sizes)
    except ValueError as error:
        raise ValueError(f"{split.name}, {part}: {error}") from None


def check_start(recipe: FewShotRecipe, split: ClassSplit) -> dict[str, Any] | None:
    """Facts of the run that training starts from, which must suit this one.

    Raises:
        RunError: the method freezes kernels and no run is given; or the run has other data, or was
            trained on classes that this run must not see.
    """
    if recipe.start is None:
        if METHODS[recipe.method].frozen:
            raise RunError(
                f"`start` must be the folder of a run: {recipe.method} freezes kernels, got none"
            )
        return None
    run = read_run(recipe.start, FewShotRun)
    if not run.summary.exists():
        raise RunError(f"`start` must be a finished run, got {run.path}; --resume it first")
    if run.digest != split.digest:
        raise RunError(
            f"`start` must be a run on the same data, whose digest is {split.digest}, got "
            f"{run.path} with {run.digest}"
        )
    if run.recipe.train_on != "train" and recipe.train_on == "train":
        raise RunError(
            f"`start` must be trained on training classes alone, as this run, got {run.path}, "
            f"trained on {run.recipe.train_on}"
        )
    return start_facts(run) | {"classes": run.recipe.train_on}


def _as_method(model: nn.Module, recipe: FewShotRecipe) -> Method:
    if isinstance(model, Method):
        return model
    return METHODS[recipe.method].build(as_network(model), recipe.select_sizes)

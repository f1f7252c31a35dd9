"""The interface of tasks: everything in which the trainings of kinds of runs differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.loop import Validate
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import Run
from neural_similarity.lab.train.runtime import SCORE_PRECISION, Precision, Runtime

AnyRun = TypeVar("AnyRun", bound=Run, contravariant=True)
AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe, contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Options of `nsim evaluate` that all runs have."""

    precision: Precision = SCORE_PRECISION
    """fp32, in which the scores of runs are computed, or bf16 autocast."""


class Task(Protocol[AnyRun, AnyRecipe]):
    """A recipe with its data, from which the session trains and scores a network.

    Its class methods and texts define a kind of run.
    """

    RUN: ClassVar[type[Run]]
    HELP: ClassVar[str]
    """Help of `nsim train` with such a recipe."""
    NAMES_CLASSES: ClassVar[bool] = True
    """Whether the network classifies images, as `nsim predict` requires."""
    SCORING: ClassVar[type[Scoring]]
    """Dataclass of the options of `nsim evaluate` that such runs have."""
    SCORING_HELP: ClassVar[str]
    """Help of `nsim evaluate`."""

    recipe: Any
    """Of the class `RUN.RECIPE`."""

    @property
    def digest(self) -> str:
        """The digest of the whole data set."""
        ...

    @property
    def images(self) -> ImageSet:
        """The images that a network may be trained on."""
        ...

    @classmethod
    def load(
        cls, recipe: AnyRecipe, root: str | Path, progress: ProgressCallback | None = None
    ) -> Self:
        """The task of a recipe, with its data from the folder `root`.

        Raises:
            FileNotFoundError: the data set is not there.
        """
        ...

    @classmethod
    def check_recipe(cls, recipe: AnyRecipe) -> None:
        """Check the start of a new run, before images are decoded.

        Raises:
            ValueError: the recipe names what does not exist, or does not fit.
            RunError: what it starts from cannot be read, or is another network.
        """

    def check_start(self) -> dict[str, Any]:
        """Check data and start of the training; return facts about the start for its record.

        Raises:
            ValueError: the data do not suit the recipe.
            RunError: the run to start from does not suit it.
        """
        ...

    def preprocess(self) -> Preprocess:
        """The preprocessing of pixels to the network's input."""
        ...

    def new_run(self, path: Path, name: str, budget: float, data_root: str | Path) -> Run:
        """A run of the task, of which nothing is written yet."""
        channels, size, _ = self.images.shape
        return self.RUN(
            path=path,
            name=name,
            budget=budget,
            recipe=self.recipe,
            data_root=str(Path(data_root).absolute()),
            digest=self.digest,
            classes=tuple(self.images.classes),
            channels=channels,
            image_size=size,
            preprocess=self.preprocess(),
        )

    def objective(self, run: AnyRun, runtime: Runtime) -> Objective:
        """The training loss and its batches or tasks."""
        ...

    def validation(self, run: AnyRun, runtime: Runtime) -> Validate | None:
        """The validation that chooses the best checkpoint, if the recipe holds data out.

        `runtime`, here and below, has the precision of scores.
        """
        ...

    def finish_run(self, run: AnyRun, state: TrainingState, runtime: Runtime) -> dict[str, Any]:
        """Draw pictures of the trained network and return its scores for the summary."""
        ...

    def best_summary(self, run: AnyRun, state: TrainingState, runtime: Runtime) -> dict[str, Any]:
        """What the summary says about the best checkpoint."""
        ...

    def evaluate(self, run: AnyRun, scoring: Any, device: str) -> tuple[dict[str, Any], str]:
        """Score a run again, by options of the class `SCORING`: facts for JSON, and a text."""
        ...

    @staticmethod
    def result_text(run: AnyRun, summary: dict[str, Any]) -> str:
        """The text to print at the end of training."""
        ...

    @staticmethod
    def failure(run: AnyRun, summary: dict[str, Any]) -> str | None:
        """Why a run that came to its end has failed all the same, or None."""
        return None

    @staticmethod
    def scored_texts(run: AnyRun) -> dict[str, str]:
        """What `nsim report` shows beside the summary: scores by the names of their files."""
        return {}

    @classmethod
    def retrained_recipe(
        cls, run: AnyRun, start: str | Path | None, load: Callable[[], Any]
    ) -> tuple[TrainingRecipe, dict[str, Any]]:
        """The recipe of a run with validation data added, and the step that the run chose.

        Raises:
            RunError: the run chose nothing on validation data.
        """
        raise RunError(f"{run.path} cannot be retrained: only few-shot runs with select_on can")

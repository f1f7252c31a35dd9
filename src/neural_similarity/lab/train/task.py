"""The interface of tasks: everything in which kinds of runs differ."""

from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.loop import Judge
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.run import Run
from neural_similarity.lab.train.runtime import Runtime

AnyRun = TypeVar("AnyRun", bound=Run, contravariant=True)
AnyRecipe = TypeVar("AnyRecipe", bound=Recipe, contravariant=True)


class Task(Protocol[AnyRun, AnyRecipe]):
    """A recipe with its data, from which the session trains and scores a network."""

    RUN: ClassVar[type[Run]]

    @property
    def recipe(self) -> Recipe: ...

    @property
    def digest(self) -> str:
        """The digest of the whole data set."""
        ...

    @property
    def images(self) -> ImageSet:
        """The images that a network may be trained on."""
        ...

    @classmethod
    def load(cls, recipe: AnyRecipe, root: str | Path, progress: Progress | None = None) -> Self:
        """The task of a recipe, with its data from the folder `root`.

        Raises:
            FileNotFoundError: the data set is not there.
        """
        ...

    @classmethod
    def check_recipe(cls, recipe: AnyRecipe) -> None:
        """Check what a new run starts from, before images are decoded.

        Raises:
            ValueError: the recipe names what does not exist, or does not fit.
            RunError: what it starts from cannot be read, or is another network.
        """
        ...

    def check(self) -> dict[str, Any]:
        """Check data and start of the training; return facts about the start for its record.

        Raises:
            ValueError: the data do not suit the recipe.
            RunError: the run to start from does not suit it.
        """
        ...

    def preprocess(self) -> Preprocess:
        """The preprocessing of pixels to the network's input."""
        ...

    def objective(self, run: AnyRun, runtime: Runtime) -> Objective:
        """The training loss and its batches or tasks."""
        ...

    def judge(self, run: AnyRun, runtime: Runtime) -> Judge | None:
        """The validation that chooses the best checkpoint, if the recipe holds data out."""
        ...

    def finish(self, run: AnyRun, state: State, runtime: Runtime) -> dict[str, Any]:
        """Draw pictures of the trained network and return its scores for the summary."""
        ...

    def best(self, run: AnyRun, state: State, runtime: Runtime) -> dict[str, Any]:
        """What the summary says about the best checkpoint."""
        ...

"""The interface of tasks: everything in which kinds of runs differ."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from torch import Tensor

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.loop import Judge
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.record import Outcome, Record
from neural_similarity.lab.train.run import SUMMARY, Run
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.lab.train.statistics import Interval

AnyRun = TypeVar("AnyRun", bound=Run, contravariant=True)
AnyRecipe = TypeVar("AnyRecipe", bound=Recipe, contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A record that a row of a table asks of each seed."""

    stem: str
    """The name of the record's file, without .json."""
    product: str = SUMMARY
    """The file in the run folder that exists once there is something to record."""
    options: tuple[str, ...] | None = None
    """Options of `nsim evaluate`, which makes it; None where training does."""
    retrained: bool = False
    """Whether the run is trained again on validation data as well."""


class Task(Protocol[AnyRun, AnyRecipe]):
    """A recipe with its data, from which the session trains and scores a network.

    Its class methods are the words of a kind of run: what the command line says about it, and how
    its records are written, read and shown.
    """

    RUN: ClassVar[type[Run]]
    HELP: ClassVar[str]
    """Help of `nsim train` with such a recipe."""
    NAMES_CLASSES: ClassVar[bool]
    """Whether the network names the classes of images, as `nsim predict` needs it."""
    SCORING: ClassVar[type[Any]]
    """Dataclass of the options of `nsim evaluate` that such runs have."""
    SCORING_HELP: ClassVar[str]
    """Help of `nsim evaluate`."""
    RECORDS: ClassVar[str]
    """Folder of the records, in that of all results."""
    COLUMNS: ClassVar[Mapping[str, Callable[[Sequence[Record]], str]]]
    """What a table shows of records that differ in their seed alone, by heading; empty for what
    images are classified by."""

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

    def evaluate(self, run: AnyRun, scoring: Any, device: str) -> tuple[dict[str, Any], str]:
        """Score a run again, by options of the class `SCORING`: facts for JSON, and a text."""
        ...

    @staticmethod
    def result_text(run: AnyRun, summary: dict[str, Any]) -> str:
        """What the end of a training tells."""
        ...

    @classmethod
    def retrained(
        cls, run: AnyRun, start: str | Path | None, load: Callable[[], Any]
    ) -> tuple[Recipe, dict[str, Any]]:
        """The recipe of a run on validation data as well, and what was chosen for it.

        Raises:
            RunError: the run chose nothing on validation data.
        """
        ...

    @staticmethod
    def trials(seed: int, method: str, shots: int, count: int) -> Iterator[Trial]:
        """The records that a row of a table asks of a seed.

        Args:
            seed: of the runs.
            method: what is evaluated, where the network is evaluated by methods.
            shots: labelled images of each class, likewise.
            count: number of test tasks, likewise.
        """
        ...

    @staticmethod
    def outcomes(run: AnyRun, command: str) -> dict[str, dict[str, Any]]:
        """What only records of this kind say, by the names of their files.

        Args:
            run: finished.
            command: the command that repeats it.

        Raises:
            RunError: there is nothing to record yet.
        """
        ...

    @staticmethod
    def is_record(path: Path) -> bool:
        """Whether a file in a folder of records has the name of one; other names are a user's."""
        ...

    @staticmethod
    def read_outcome(content: dict[str, Any], recipe: AnyRecipe) -> Outcome:
        """What `outcomes` wrote.

        Raises:
            ValueError: it is damaged.
        """
        ...

    @staticmethod
    def grouped(records: Sequence[Record], method: str, shots: int) -> dict[Hashable, list[Record]]:
        """The records that a row shows, in groups that differ in their seed alone."""
        ...

    @staticmethod
    def comparable(ours: Record, theirs: Record) -> bool:
        """Whether two records of a seed were scored on the same images or tasks."""
        ...

    @staticmethod
    def interval(values: Tensor) -> Interval:
        """The interval of a mean over test images or tasks."""
        ...

    @staticmethod
    def facts(records: Sequence[Record]) -> dict[str, Any]:
        """What a table says of such records as JSON values, besides their accuracies."""
        ...

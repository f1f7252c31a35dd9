"""The interface of tasks: everything in which kinds of runs differ."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from torch import Tensor

from neural_similarity.lab.data import ImageSet, Preprocess
from neural_similarity.lab.data.files import ProgressCallback
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.loop import Validate
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.record import Outcome, Record
from neural_similarity.lab.train.run import SUMMARY, Run
from neural_similarity.lab.train.runtime import SCORE_PRECISION, Precision, Runtime
from neural_similarity.lab.train.statistics import Interval

AnyRun = TypeVar("AnyRun", bound=Run, contravariant=True)
AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe, contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A record that a table's row needs for each seed."""

    stem: str
    """The name of the record's file, without .json."""
    product: str = SUMMARY
    """The file in the run folder whose presence means that the run can be recorded."""
    options: tuple[str, ...] | None = None
    """Options of `nsim evaluate`, which makes that file; None if training makes it."""
    retrained: bool = False
    """Whether the run is retrained with validation data added."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Options of `nsim evaluate` that all runs have."""

    precision: Precision = SCORE_PRECISION
    """fp32, in which the scores of runs are computed, or bf16 autocast."""


class Task(Protocol[AnyRun, AnyRecipe]):
    """A recipe with its data, from which the session trains and scores a network.

    Its class methods define a kind of run: its texts on the command line, and how its records are
    written, read and shown. Those with a body suit kinds whose runs have one record each.
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
    RECORDS: ClassVar[str] = ""
    """Folder of the records, inside the folder of all results."""
    COLUMNS: ClassVar[Mapping[str, Callable[[Sequence[Record]], str]]] = {}
    """The columns of a table, by heading, for records that differ in their seed alone; empty for
    image classification."""

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

    @staticmethod
    def row_trials(seed: int, method: str, shots: int, count: int) -> Iterable[Trial]:
        """The records that a table's row needs for a seed.

        Few-shot runs evaluate `method` on `count` test tasks with `shots` labelled images a class.
        """
        return [Trial(stem=f"{seed}")]

    @classmethod
    def check_trials(cls, recipe: AnyRecipe, root: str | Path, shots: int) -> None:
        """Check that the data in `root` suffice for such trials, where they are on tasks."""

    @staticmethod
    def record_outcomes(run: AnyRun, command: str) -> dict[str, dict[str, Any]]:
        """The parts of records that only this kind of run has, by the names of their files.

        `command` is the one that repeats the run.
        """
        ...

    @staticmethod
    def is_record(path: Path) -> bool:
        """Whether a file in a folder of records is named like one; other files are the user's."""
        ...

    @staticmethod
    def read_outcome(content: dict[str, Any], recipe: AnyRecipe) -> Outcome:
        """The outcome that `record_outcomes` gave."""
        ...

    @staticmethod
    def group_records(
        records: Sequence[Record], method: str, shots: int
    ) -> dict[Hashable, list[Record]]:
        """The records that a row shows, in groups that differ in their seed alone."""
        return {(): sorted(records, key=lambda record: record.seed)} if records else {}

    @staticmethod
    def comparable(ours: Record, theirs: Record) -> bool:
        """Whether two records of a seed were scored on the same images or tasks."""
        return True

    @staticmethod
    def interval(values: Tensor) -> Interval:
        """The interval of a mean over test images or tasks."""
        ...

    @staticmethod
    def record_facts(records: Sequence[Record]) -> dict[str, Any]:
        """The facts that a table gives about these records in JSON, besides accuracies."""
        return {"summary": records[0].summary}

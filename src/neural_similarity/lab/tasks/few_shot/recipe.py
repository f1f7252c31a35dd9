"""The settings of a few-shot run, as one frozen dataclass."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from neural_similarity.choices import require_known, require_least
from neural_similarity.lab.data import OLDER_NAMES, SPLIT_NAMES
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe

Classes = Literal["train", "train+val"]
FORMER = {
    field.name: field.default
    for field in fields(Recipe)
    if field.name not in {own.name for own in fields(TrainingRecipe)}
}
"""Fields that records of 0.2 have, each with its default: few-shot learning does not use them."""
RETRAINED = ("train_on", "select_on", "steps", "drops")
"""Fields that change when a run is trained on validation classes as well."""
AnyRecipe = TypeVar("AnyRecipe", bound="FewShotRecipe")


@dataclass(frozen=True, kw_only=True)
class FewShotRecipe(TrainingRecipe):
    """Few-shot learning; the defaults are the paper's pretraining on the base classes.

    `method` decides how the network is trained: by classifying the base classes, or by tasks of
    `ways` classes with `shots` labelled images and `queries` each. For pretraining the paper gives
    neither epochs nor batch size: we take 100 epochs of Mini-ImageNet's 64 classes, and 128.
    """

    DATASETS: ClassVar[Collection[str]] = SPLIT_NAMES
    START: ClassVar[str] = "start"

    dataset: str = "mini-imagenet"
    """Data set: embedded, mini-imagenet, cifar-fs, fc100, or folder (one a class)."""
    train_on: Classes = "train"
    """Base classes: the training classes, or the validation classes as well, as in the paper."""
    method: str = "fine-tuning"
    """The method that is trained, and evaluated unless another one is named."""
    start: str | None = None
    """Run folder whose network training starts from."""
    ways: int = 5
    """Classes of a training task."""
    shots: int = 5
    """Labelled images of each class of a task, in training and validation; test classes, too, need
    `shots` + `queries` images."""
    queries: int = 15
    """Queries of each class of a task, in training and validation."""
    meta_batch: int = 1
    """Tasks per update, if training is by tasks."""
    batch_size: int = 128
    """Images per update, if training classifies the base classes."""
    select_on: Literal["none", "val"] = "none"
    """Keep the checkpoint that is best on tasks of the validation classes."""
    select_tasks: int = 300
    """Number of validation tasks."""
    select_ways: int = 5
    """Classes of a validation task."""
    model: str = "convnet4"
    """Network; `nsim models` lists them."""
    steps: int = 30_000
    """Number of updates."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """Gradient descent with momentum, or Adam; both add the decay to the gradient."""
    lr: float = 1e-3
    """Learning rate before the first drop."""
    drops: tuple[int, ...] = ()
    """Steps at which the learning rate is multiplied by `drop_factor`."""
    weight_decay: float = 0.0
    """Decay of kernels, normalisation gains and biases."""
    crop: int = 8
    """Pixels of padding before the random crop; 0 crops nothing."""
    evaluate_every: int = 1_500
    """Steps between two validations."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", OLDER_NAMES.get(self.dataset, self.dataset))
        super().__post_init__()
        require_known("method", self.method, METHODS)
        wanted = "be random in few-shot learning, whose tasks have no epochs"
        self._require_field(self.flips == "random", "flips", wanted)
        _ = self.task_sizes, self.select_sizes  # They check the numbers.
        require_least("meta_batch", self.meta_batch)
        require_least("select_tasks", self.select_tasks, 2)
        if self.select_on == "val" and self.train_on != "train":
            raise ValueError(
                '`select_on` "val" needs classes that are not trained on, got `train_on` '
                f"{self.train_on!r}"
            )
        if self.select_on == "val" and METHODS[self.method].fixed_ways:
            self._require_same_ways()

    def _require_same_ways(self) -> None:
        """Check that validation tasks fit a learned classifier."""
        if self.select_ways != self.ways:
            raise ValueError(
                f"`select_ways` must be `ways`, {self.ways}, as {self.method} learns the start "
                f"of its classifier, got {self.select_ways}"
            )

    @classmethod
    def current_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields in a file without `FORMER` ones at their defaults; others are refused."""
        return {n: value for n, value in fields.items() if n not in FORMER or value != FORMER[n]}

    @property
    def shared_field(self) -> str:
        return "meta_batch" if METHODS[self.method].episodic else "batch_size"

    def folder_name(self, name: str) -> str:
        """`<name>[-train+val]-seed<seed>`."""
        return super().folder_name(name if self.train_on == "train" else f"{name}-{self.train_on}")

    def start_terms(self, budget: float) -> dict[str, Any]:
        """The classes; records give the budget of the start."""
        return {"classes": self.train_on}

    @property
    def retrained_fields(self) -> tuple[str, ...]:
        return () if self.train_on == "train" else RETRAINED

    def retrained(self, step: int, growth: float) -> Self:
        return retraining_recipe(self, step, growth)

    @property
    def task_sizes(self) -> TaskSizes:
        return TaskSizes(ways=self.ways, shots=self.shots, queries=self.queries)

    @property
    def select_sizes(self) -> TaskSizes:
        return replace(self.task_sizes, ways=self.select_ways)


def retraining_recipe(recipe: AnyRecipe, step: int, growth: float) -> AnyRecipe:
    """The recipe on training and validation classes, up to the step that was best on the latter.

    `growth` is the ratio of the numbers of images, by which steps grow for as many epochs; episodic
    training keeps its number of tasks.
    """
    factor = 1.0 if METHODS[recipe.method].episodic else growth
    steps = max(1, round(step * factor))
    drops = tuple(round(d * factor) for d in recipe.drops)
    return replace(
        recipe,
        train_on="train+val",
        select_on="none",
        steps=steps,
        drops=tuple(d for d in drops if d < steps),
    )

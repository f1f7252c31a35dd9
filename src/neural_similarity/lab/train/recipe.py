"""The settings of a training run, as one frozen dataclass."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import nn

from neural_similarity.choices import require_known
from neural_similarity.lab.data import NAMES, Inputs
from neural_similarity.lab.train.recipe_checks import POSITIVE, check_fields_of, require_field
from neural_similarity.lab.train.runtime import PrecisionChoice
from neural_similarity.lab.train.schedule import scaled_steps
from neural_similarity.models import MODELS, SPHERENETS
from neural_similarity.nn import Similarity, Static, format_similarity, parse_similarity
from neural_similarity.regularize import MEASURES

MACHINE = (
    "precision",
    "channels_last",
    "compile",
    "threads",
    "workers",
    "sync_norms",
    "checkpoint_seconds",
    "checkpoint_every",
    "track",
    "draft",
)
"""Fields that adapt a run to a machine; changing them leaves the recipe the same."""


AnyRecipe = TypeVar("AnyRecipe", bound="TrainingRecipe")


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """What is added to the cross-entropy of a batch, or changes it."""

    penalty: float = 0.0
    """Factor on the penalty of static similarities, which is added to the loss."""
    penalty_measure: str = "l1"
    """Measure that the penalty sums over matrices: l1 (sparse), nuclear (low rank) or deviation."""
    orthogonality: float = 0.0
    """Factor on ‖W Wᵀ - I‖² of hyperspherical kernels, in place of their decay; the released
    code takes 1e-4."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes; the released code takes 0.01."""
    probability_floor: float = 0.0
    """Added to the probabilities before their logarithm; the released code takes 1e-4."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Stochastic gradient descent, whatever is learned; the defaults are the paper's CIFAR-10.

    A recipe and a data folder determine a run: model, batches and crops are functions of `seed`.
    """

    DATASETS: ClassVar[Collection[str]] = NAMES
    """The choices of `dataset`."""
    POSITIVE: ClassVar[Collection[str]] = POSITIVE
    """The fields that must be above 0."""
    START: ClassVar[str] = ""
    """The field that names the run to start from, if training can start from one."""
    START_REQUIRED: ClassVar[bool] = False
    """Whether training requires that field."""

    dataset: str = "cifar10"
    """Data set: embedded, cifar10 (in a clone also changed, such as cifar10-noise-25, see
    docs/reference/baselines.md), cifar100, folder (one subfolder per class), or imagenet
    (train/CLASS and val/CLASS, decoded while training)."""
    image_size: int | None = None
    """Height and width to which images of a folder, or of imagenet (224), are resized."""
    inputs: Inputs = "normalized"
    """Pixels are normalised by the channel statistics of the training images (normalized) or of
    ImageNet (imagenet), or stay raw (0 to 255) as in the released code."""
    model: str = "cnn9"
    """Network; `nsim models` lists them."""
    variant: Literal["paper", "released"] = "paper"
    """Layers as the paper's text describes them, or as the authors' released code builds CNN-9.
    On the command line `--variant released` means the whole recipe RECIPE@released."""
    width: float = 1.0
    """Factor on the number of filters."""
    similarity: Similarity | None = None
    """Similarity of the convolutions, such as dynamic-diagonal or static-full, or none."""
    steps: int = 64_000
    """Updates; the paper counts iterations, not epochs."""
    lr: float = 0.1
    """Learning rate before the first drop."""
    schedule: Literal["drops", "one-cycle"] = "drops"
    """drops: the learning rate is constant between the drops. one-cycle: it rises linearly to `lr`
    for a fifth of the steps, then falls linearly to zero."""
    drops: tuple[int, ...] = (34_000, 54_000)
    """Steps at which the learning rate is multiplied by `drop_factor`; none for one-cycle."""
    drop_factor: float = 0.1
    """Factor on the learning rate at every drop."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Gradient descent with momentum, or Adam; both add the decay to the gradient."""
    momentum: float = 0.9
    """Momentum of the gradient descent, β1 of Adam."""
    nesterov: bool = False
    """Nesterov's momentum in the gradient descent."""
    batch_size: int = 128
    """Images of a training batch."""
    weight_decay: float = 5e-4
    """Decay of kernels, normalisation gains and biases."""
    decayed: Literal["all", "kernels"] = "all"
    """What decays: all of these, or only the kernels of layers, without gains, biases and the
    predictors of M."""
    similarity_decay: float = 0.0
    """Decay of static similarities towards the identity; predictors decay as the kernels do."""
    norm_momentum: float = 0.1
    """Weight of a batch in the running statistics of normalisation; the released code takes 0.001
    (a decay of 0.999), which needs thousands of steps."""
    norm_eps: float = 1e-5
    """Added to the variance in normalisation, except in predictors; the released code adds 1e-3."""
    crop: int = 4
    """Pixels of padding before the random crop; 0 crops nothing. It must be 0 for imagenet, whose
    random windows are resized."""
    flip: bool = True
    """Mirror half of the images; False for signs, text, and wherever left and right differ."""
    flips: Literal["random", "alternate"] = "random"
    """Mirror an image at random in every epoch, or in every other epoch (not for imagenet)."""
    padding: Literal["zero", "symmetric", "reflect"] = "zero"
    """What the crop pads with: zeros, or the border mirrored, with its own pixels (symmetric, as
    the released code) or without (reflect)."""
    precision: PrecisionChoice = "auto"
    """bf16 autocast, fp32, or auto: the faster one on this device."""
    channels_last: bool = True
    """Memory layout of images and weights; changes the speed only."""
    threads: int = 0
    """CPU threads; 0 keeps torch's choice. Several threads are very slow on cores that other
    processes use, too, since waiting threads keep spinning."""
    workers: int = 4
    """Processes that decode ImageNet's files, at most one per core; 0: this process decodes."""
    sync_norms: bool = False
    """Normalise by the statistics of the whole batch where several GPUs share it."""
    seed: int = 0
    """Seed of the initial weights, of the held-out images, and of batches, crops and flips."""
    log_every: int = 50
    """Steps between two lines of metrics."""
    evaluate_every: int = 1_000
    """Steps between two validations on the held-out images."""
    checkpoint_seconds: float = 120.0
    """Longest time between two checkpoints, at most 300 seconds."""
    track: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """Tracker that also receives the metrics: TensorBoard writes into the run folder, W&B and
    MLflow where their settings say. metrics.jsonl always has them."""
    checkpoint_every: int = 0
    """Save a checkpoint every so many steps, too; 0: by time only."""

    def __post_init__(self) -> None:
        if isinstance(self.similarity, str):
            object.__setattr__(self, "similarity", parse_similarity(self.similarity))
        kinds = isinstance(self.similarity, Similarity | None)
        self._require_field(kinds, "similarity", "be None, a text, an ns.Static or an ns.Dynamic")
        require_known("dataset", self.dataset, self.DATASETS)
        require_known("model", self.model, MODELS)
        check_fields_of(self)

    @property
    def shared_field(self) -> str:
        """The field that counts the images or tasks of an update, which processes share."""
        return "batch_size"

    @property
    def sphere_decay(self) -> float | None:
        """The decay of hyperspherical kernels; None is that of the others."""
        return None

    def folder_name(self, name: str) -> str:
        return f"{name}-seed{self.seed}"

    @classmethod
    def current_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields in a file, with older names replaced by current ones."""
        return fields

    def rate_groups(self, model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A network's parameters in groups, split where some have a rate of `scale` times `lr`."""
        del model
        return groups

    def start_terms(self, budget: float) -> dict[str, Any]:
        """Facts, besides the seed, in which the run to start from must equal this recipe's run."""
        return {"budget": budget}

    @property
    def retrained_fields(self) -> tuple[str, ...]:
        """The fields that retraining on validation data has changed."""
        return ()

    def retrained(self, step: int, growth: float) -> Self:
        """The recipe with validation data added, by the chosen step: `Task.retrained_recipe`."""
        raise NotImplementedError

    def _require_field(self, holds: bool, name: str, wanted: str) -> None:
        require_field(self, holds, name, wanted)


@dataclass(frozen=True, kw_only=True)
class Recipe(LossTerms, TrainingRecipe):
    """Image classification."""

    validation: int = 0
    """Training images held out, on which the best checkpoint is chosen."""
    balanced: bool = False
    """Draw every class equally often, so that the images of rare classes come more often."""
    compile: bool = False
    """Train through torch.compile."""
    draft: bool = True
    """Decode JPEG photographs of a folder at a half, a quarter or an eighth of their size if they
    shrink to a sixth or less: 12 megapixels take a third of the time. False decodes every pixel,
    as in runs of version 0.3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("penalty_measure", self.penalty_measure, MEASURES)
        if self.orthogonality and self.model not in SPHERENETS:
            raise ValueError(
                f"`orthogonality` applies to {', '.join(sorted(SPHERENETS))} and must be 0 for "
                f"{self.model}, got {self.orthogonality}"
            )
        if self.penalty and not isinstance(self.similarity, Static):
            raise ValueError(
                "`penalty` applies to static similarities and must be 0 for others, "
                f"got {self.penalty} for {self.similarity!r}"
            )

    @classmethod
    def current_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields in a file; images of version 0.3, which lacks `draft`, have all pixels."""
        return {"draft": False} | fields

    @property
    def sphere_decay(self) -> float | None:
        return 0.0 if self.orthogonality else None


def scale_recipe(recipe: AnyRecipe, budget: float) -> AnyRecipe:
    """The recipe with steps and drops times `budget`, rounded as in `scaled_steps`."""
    steps, drops = scaled_steps(recipe.steps, recipe.drops, budget)
    return replace(recipe, steps=steps, drops=drops)


def differing_fields(
    recipe: TrainingRecipe, original: TrainingRecipe, free: Collection[str]
) -> list[str]:
    """The fields in which two recipes of one kind differ, except those that are `free`."""
    names = (field.name for field in dataclasses.fields(recipe) if field.name not in free)
    return [name for name in names if getattr(recipe, name) != getattr(original, name)]


def recipe_to_json(recipe: TrainingRecipe) -> dict[str, Any]:
    """Every field as JSON, the similarity as the complete text that the command line takes."""
    fields = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return fields | {
        "similarity": format_similarity(recipe.similarity, complete=True),
        "drops": list(recipe.drops),
    }


def recipe_from_json(fields: dict[str, Any], recipe_class: type[AnyRecipe] = Recipe) -> AnyRecipe:
    """The recipe of class `recipe_class` that `recipe_to_json` wrote."""
    similarity = parse_similarity(fields["similarity"])
    fields = recipe_class.current_fields(fields)
    return recipe_class(**fields | {"similarity": similarity, "drops": tuple(fields["drops"])})

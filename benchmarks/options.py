"""What the commands of `python -m benchmarks` take."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import torch

from benchmarks import Effort
from benchmarks.networks import KNOWN, PREDICTORS
from neural_similarity.lab.cli.commands import require
from neural_similarity.lab.cli.parsing import integer, listed
from neural_similarity.lab.paper import TABLES
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.runtime import Precision

Numbers = Annotated[tuple[int, ...], listed(integer, "N,N,...")]
Names = Annotated[tuple[str, ...], listed(str, "NAME,NAME,...")]
CIFAR10 = [
    name
    for name, recipe in RECIPES.items()
    if recipe.dataset == "cifar10" and recipe.optimizer == "sgd" and not recipe.orthogonality
]
"""Recipes whose updates are those that are timed: of CIFAR-10, by gradient descent."""
SLOW = "cifar10-deformable"
"""Takes minutes on a CPU."""
COMPARED = tuple(
    dict.fromkeys(
        row.recipe
        for table in ("4", "1", "2", "3", "costs", "rivals")
        for row in TABLES[table].rows
        if row.recipe in CIFAR10 and row.recipe != SLOW
    )
)
"""Recipes of tables whose networks are CNN-9, the plain one first."""
LEAST = {"batch": 1, "size": 1, "tasks": 2}
QUICK_ROUNDS, QUICK_WIDTH, QUICK_BATCH, QUICK_TASKS = 3, 0.1, 2, 20


class Shape(NamedTuple):
    """Of a map."""

    channels: int
    size: int

    @staticmethod
    def read(word: str) -> "Shape":
        """The shape in a word such as 64x16."""
        channels, _, size = word.partition("x")
        if not (channels.isdecimal() and size.isdecimal()):
            raise ValueError(f"`shapes` must be like 64x16, channels and size, got {word!r}")
        return Shape(int(channels), int(size))

    def __str__(self) -> str:
        return f"{self.channels}x{self.size}"


Shapes = Annotated[tuple[Shape, ...], listed(Shape.read, "CxS,CxS,...")]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every benchmark takes."""

    seconds: ClassVar[float] = Effort.seconds
    dtype: Literal["fp32", "bf16", "both"] = "both"
    """Precision; ratios are to the baseline in the same."""
    rounds: int = 15
    """How often everything is timed, by turns."""
    threads: Numbers = (0,)
    """Numbers of CPU threads, each apart; 0 is torch's choice."""
    device: str = "auto"
    """auto, cpu or cuda."""
    out: Path = Path("benchmarks")
    """Folder for what was found: NAME.json and NAME.png."""
    quick: bool = False
    """Try the command out in seconds, at sizes that say nothing."""

    def __post_init__(self) -> None:
        Effort(rounds=self.rounds)
        if min(self.threads) < 0:
            raise ValueError(f"`threads` must not be negative, got {self.threads}")
        for name, least in LEAST.items():
            values = getattr(self, name, (least,))
            if min(values if isinstance(values, tuple) else (values,)) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {values}")

    @property
    def effort(self) -> Effort:
        """How long to measure."""
        if self.quick:
            return Effort(rounds=QUICK_ROUNDS, seconds=self.seconds, attempts=1)
        return Effort(rounds=self.rounds, seconds=self.seconds)

    @property
    def counts(self) -> list[int]:
        """The numbers of threads, torch's own for 0."""
        return [count or torch.get_num_threads() for count in self.threads]

    @property
    def runtimes(self) -> list[Runtime]:
        """Device and precision of every part."""
        wanted = get_args(Precision)[::-1] if self.dtype == "both" else (self.dtype,)
        return [choose_runtime(self.device, precision) for precision in wanted]


@dataclass(frozen=True, kw_only=True)
class OperatorsOptions(Options):
    """What `python -m benchmarks operators` takes."""

    rounds: int = 9
    """How often everything is timed, by turns."""
    batch: Numbers = (32, 128)
    """Images at a time."""
    shapes: Shapes = (Shape(32, 32), Shape(64, 16), Shape(128, 8))
    """Channels and size of the maps."""
    similarity: Literal["diagonal", "full", "both"] = "both"
    """Kind of M."""


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """What `python -m benchmarks scaling` takes."""

    dtype: Literal["fp32", "bf16", "both"] = "fp32"
    """Precision."""
    threads: Numbers = (1, 2)
    """Numbers of CPU threads, each apart."""
    rounds: int = 7
    """How often everything is timed, by turns."""
    batch: Numbers = (1, 4, 16, 64, 256)
    """Images at a time, at the first of the sizes."""
    size: Numbers = (32, 64, 112, 160, 224)
    """Height and width, at the second of the batches."""
    channels: int = 32
    """Of input and output."""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Options):
    """What benchmarks of CNN-9 take."""

    seconds: ClassVar[float] = 15.0
    similarity: Names = ("static-diagonal", "static-full", "dynamic-diagonal", *PREDICTORS)
    """Named similarities, beside the plain network; dynamic-full takes minutes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.similarity:
            require("similarity", name, KNOWN)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(NetworkOptions):
    """What `python -m benchmarks training` takes."""

    batch: Numbers = (128,)
    """Images an update."""


@dataclass(frozen=True, kw_only=True)
class RecipesOptions(Options):
    """What `python -m benchmarks recipes` takes."""

    seconds: ClassVar[float] = 15.0
    dtype: Literal["fp32", "bf16", "both"] = "bf16"
    """Precision; ratios are to the baseline in the same."""
    batch: Numbers = (128,)
    """Images an update."""
    recipes: Names = COMPARED
    """Recipes of CIFAR-10; others are compared with the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.recipes:
            require("recipe of CIFAR-10 by gradient descent", name, CIFAR10)


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(NetworkOptions):
    """What `python -m benchmarks inference` takes."""

    batch: Numbers = (1, 128)
    """Images at a time."""


@dataclass(frozen=True, kw_only=True)
class FewShotOptions(Options):
    """What `python -m benchmarks fewshot` takes."""

    seconds: ClassVar[float] = 60.0
    dtype: Literal["fp32"] = "fp32"
    """Precision of gradients through gradients."""
    rounds: int = 7
    """How often everything is timed, by turns."""
    size: int = 84
    """Height and width of the images that MAML sees."""
    tasks: int = 2_000
    """Tasks on kept features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 16:
            raise ValueError(
                f"`size` must be at least 16, of which CNN-4 leaves one, got {self.size}"
            )


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What `python -m benchmarks page` takes."""

    results: Path = Path("benchmarks")
    """Folder of what the benchmarks saved."""
    out: Path = Path("docs/performance.md")
    """Markdown file to write."""

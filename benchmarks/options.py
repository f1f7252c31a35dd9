"""What the commands of `python -m benchmarks` take."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

import torch

from benchmarks.measure import Effort
from neural_similarity.lab.cli.commands import require
from neural_similarity.lab.cli.parsing import integer, listed, parse
from neural_similarity.lab.paper import TABLES
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.runtime import Precision

PROGRAM = "python -m benchmarks"
T = TypeVar("T")
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every benchmark takes; one that has no use for an option refuses it."""

    dtype: Literal["fp32", "bf16", "both"] = "both"
    """Precision; ratios are to the baseline in the same."""
    rounds: int = 15
    """How often everything is timed, by turns."""
    threads: Numbers = (0,)
    """Numbers of CPU threads, each apart; 0 is torch's choice."""
    batch: Numbers = ()
    size: Numbers = ()
    """Height and width of maps or images."""
    channels: Numbers = ()
    """Of the operators' maps; 0 is 1024 over the size."""
    similarity: Names = ()
    """Kinds of M, or named similarities beside the plain network; dynamic-full takes minutes."""
    recipes: Names = ()
    """Recipes of CIFAR-10; others are compared with the first."""
    device: str = "auto"
    out: Path = Path("benchmarks")
    """Folder for what was found: NAME.json and NAME.png."""
    quick: bool = False
    """Try the command out in seconds, at sizes that say nothing."""

    def __post_init__(self) -> None:
        Effort(rounds=self.rounds)
        for name, least in (("threads", 0), ("batch", 1), ("size", 1), ("channels", 0)):
            if min(getattr(self, name), default=least) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}")
        for name in self.recipes:
            require("recipe of CIFAR-10 by gradient descent", name, CIFAR10)

    @property
    def effort(self) -> Effort:
        """How long to measure, with torch's own number of threads for 0."""
        threads = [count or torch.get_num_threads() for count in self.threads]
        return Effort(rounds=self.rounds, attempts=1 if self.quick else 3, threads=threads)

    @property
    def runtimes(self) -> list[Runtime]:
        """Device and precision of every part."""
        wanted = get_args(Precision)[::-1] if self.dtype == "both" else (self.dtype,)
        return [choose_runtime(self.device, precision) for precision in wanted]


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What `python -m benchmarks page` takes."""

    results: tuple[Path, ...] = tuple(Path("benchmarks", name) for name in ("", "epyc", "avx2"))
    """Folders of what the benchmarks saved, one a processor. Of one alone, all tables are shown."""
    out: Path = Path("docs/performance.md")
    """Markdown file to write."""


def given(default: T, args: Sequence[str], name: str, about: str) -> T:
    """The options of the benchmark `name`, `default` where the command line has none."""
    return parse(
        type(default),
        args,
        prog=f"{PROGRAM} {name}",
        description=f"{about[0].upper()}{about[1:]}.\n\nexample:\n  {PROGRAM} {name}",
        default=default,
        flags=True,
    )

"""What the commands of `python -m benchmarks` take."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePath
from typing import Annotated, Literal, TypeVar, get_args

import torch

from benchmarks.case import Case
from benchmarks.measure import LEAST_ROUNDS
from neural_similarity.choices import require_least
from neural_similarity.lab.cli.parsing import comma_list, parse_integer, parse_options
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.runtime import Precision

PROGRAM = "python -m benchmarks"
QUICK_EXTENT, QUICK_WIDTH = 64, 0.1
T = TypeVar("T")
Numbers = Annotated[tuple[int, ...], comma_list(parse_integer, "N,N,...")]
Names = Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")]


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
    similarity: Names = ()
    """Kinds of M, or named similarities beside the plain network; dynamic-full takes minutes."""
    network: Names = ()
    """Whole networks, by name."""
    device: str = "auto"
    out: Path = Path("benchmarks")
    """Folder for what was found, NAME.json."""
    quick: bool = False
    """Try the command out in seconds, at sizes that say nothing."""

    def __post_init__(self) -> None:
        require_least("rounds", self.rounds, LEAST_ROUNDS)
        for name, least in (("threads", 0), ("batch", 1), ("size", 1)):
            if min(getattr(self, name), default=least) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}")

    def runtimes(self, *, nchw: bool = False) -> Iterator[Runtime]:
        """Device and precision of every part, its maps channels last and, if asked for, NCHW."""
        wanted = get_args(Precision)[::-1] if self.dtype == "both" else (self.dtype,)
        for precision, last in product(wanted, (True, False) if nchw else (True,)):
            yield choose_runtime(self.device, precision, channels_last=last)

    def cases(
        self, kinds: Iterable[str] = ("",), *, extent: int = 0, nchw: bool = False
    ) -> Iterator[Case]:
        """Every kind at every size; maps have `extent` over the size channels, images three."""
        extent = extent and QUICK_EXTENT if self.quick else extent
        width, attempts = (QUICK_WIDTH, 1) if self.quick else (1.0, 3)
        threads = tuple(count or torch.get_num_threads() for count in self.threads)
        parts = self.runtimes(nchw=nchw), kinds, self.size or (Case.size,), self.batch
        for runtime, kind, size, batch in product(*parts):
            yield Case(
                runtime=runtime,
                kind=kind,
                batch=batch,
                channels=max(1, extent // size) if extent else Case.channels,
                size=size,
                width=width,
                rounds=self.rounds,
                attempts=attempts,
                threads=threads,
            )


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What `python -m benchmarks page` takes."""

    results: tuple[Path, ...] = tuple(Path("benchmarks", name) for name in ("", "epyc", "avx2"))
    """Folders of what the benchmarks saved, one a processor. Of one alone, all tables are shown."""
    out: Path = Path("docs/evidence/performance.md")
    """Markdown file to write."""


def without_folders(command: str) -> str:
    """A command line whose absolute paths are their last names: none of a machine's folders."""
    words = (word.rpartition("=") for word in shlex.split(command))
    return shlex.join(
        start + sign + (PurePath(path).name if PurePath(path).is_absolute() else path)
        for start, sign, path in words
    )


def given_options(default: T, args: Sequence[str], name: str, about: str) -> T:
    """The options of the benchmark `name`, `default` where the command line has none."""
    return parse_options(
        type(default),
        args,
        prog=f"{PROGRAM} {name}",
        description=f"{about}\n\nexample:\n  {PROGRAM} {name}",
        default=default,
        flags=True,
    )

"""`nsim recipes` and `nsim data`: what there is to train, and on what."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from neural_similarity import data as datasets
from neural_similarity.cli.parsing import parse, unknown
from neural_similarity.nn.text import Similarity
from neural_similarity.recipes import DESCRIPTIONS, RECIPES

FOLDER = "folder"
WIDTH = 132


@dataclass(frozen=True, kw_only=True)
class RecipesOptions:
    """What `nsim recipes` takes: nothing."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What `nsim data` takes."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Data set."""
    data: Path = Path("data")
    """Folder of the data sets."""


def recipes(args: Sequence[str]) -> int:
    """Print the named recipes as a table."""
    description = "List the named recipes.\n\nexample:\n  nsim recipes"
    parse(RecipesOptions, args, command="recipes", description=description)
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for column in ("name", "data", "model", "similarity", "steps"):
        table.add_column(column, no_wrap=True)
    table.add_column("description")
    for name, recipe in RECIPES.items():
        similarity = _kind(recipe.similarity)
        steps = f"{recipe.steps:,}"
        row = (name, recipe.dataset, recipe.model, similarity, steps, DESCRIPTIONS[name])
        table.add_row(*row)
    Console(width=max(Console().width, WIDTH)).print(table)
    return 0


def data(args: Sequence[str]) -> int:
    """Download or verify a data set and print its sizes."""
    description = (
        "Download a data set, or verify the one that is there, and print its sizes."
        "\n\nexample:\n  nsim data cifar10 --data data"
    )
    options = parse(DataOptions, args, command="data", description=description)
    if options.name not in datasets.NAMES:
        raise unknown("data set", options.name, datasets.NAMES)
    path = options.data
    if options.name != FOLDER:
        with _download_bar() as progress:
            path = datasets.download(options.name, options.data, progress=progress)
    dataset = datasets.load(options.name, root=options.data)
    channels, height, width = dataset.train.pixels.shape[1:]
    sys.stdout.write(
        f"{dataset.name} in {path}: {len(dataset.train):,} training and {len(dataset.test):,} test "
        f"images of {channels}x{height}x{width}, {len(dataset.train.classes)} classes\n"
    )
    return 0


def _kind(similarity: Similarity | None) -> str:
    """The name of a similarity without the options of its parts."""
    if similarity is None:
        return "none"
    return f"{type(similarity).__name__}-{type(similarity.structure).__name__}".lower()


@contextmanager
def _download_bar() -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr for the bytes of a download, in a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with RichProgress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)

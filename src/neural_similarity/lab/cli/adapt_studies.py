"""`nsim reproduce` and `nsim table` of the studies of adaptation, which are no tables of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from neural_similarity.files import write_text
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import check_folders, parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.paper.adapt_continual import CONTINUAL_NAME, run_continual
from neural_similarity.lab.paper.adapt_continual_report import continual_to_markdown
from neural_similarity.lab.paper.adapt_map import MAP_FOLDER
from neural_similarity.lab.paper.adapt_report import draw_map, map_to_markdown, read_map
from neural_similarity.lab.paper.adapt_runs import ReportLine, run_map
from neural_similarity.lab.train.progress import print_notice


class Study(NamedTuple):
    """Runs of their own kind, with a page of text."""

    about: str
    """What runs."""
    run: Callable[[Path, Path, ReportLine], None]
    """Runs what the folder of records lacks, given that of the data sets."""
    to_markdown: Callable[[Path, str | None], str]
    """The text, given the folder of records and the file of the picture."""
    draw: Callable[[Path, Path], None] | None = None
    """Draws a folder of records into a file."""


STUDIES = {
    MAP_FOLDER: Study(
        "the map of adaptation: the choice of rates, then the cells, most telling ones first",
        run_map,
        lambda results, picture: map_to_markdown(read_map(results), picture),
        lambda results, picture: draw_map(read_map(results), picture),
    ),
    CONTINUAL_NAME: Study(
        "continual adaptation to CIFAR-100 in twenty tasks: the choice of rates, then the orders",
        run_continual,
        lambda results, _: continual_to_markdown(results),
    ),
}
"""The studies by the name of their table and of their folder of records."""


@dataclass(frozen=True, kw_only=True)
class StudyRunOptions:
    """Options of `nsim reproduce` with a study."""

    data: Path = Path("data")
    """Folder of the data sets; the network is data/pretrained-cifar10/resnet20.pt."""
    results: Path = Path("results")
    """Folder of the run records."""

    def __post_init__(self) -> None:
        check_folders(data=self.data, results=self.results)


@dataclass(frozen=True, kw_only=True)
class StudyTableOptions:
    """Options of `nsim table` with a study."""

    results: Path = Path("results")
    """Folder of the run records."""
    out: Path | None = None
    """Markdown file to write, the map's picture beside it; by default text is printed."""

    def __post_init__(self) -> None:
        check_folders(results=self.results)
        if self.out is not None and self.out.suffix != ".md":
            raise UsageError(f"--out must end in .md, got {self.out}")


def reproduce_study(name: str, args: Sequence[str]) -> int:
    """Run what a study lacks, one run after the other on one thread; it may be stopped any time."""
    study = STUDIES[name]
    description = (
        f"Run what is missing of {study.about}. One thread; every run is kept at once, and the "
        f"same command goes on.\n\nexample:\n  nsim reproduce {name} --data data"
    )
    options = parse_options(StudyRunOptions, args, prog="nsim reproduce", description=description)
    study.run(options.data, options.results, print_notice)
    print_line(f"nsim table {name} shows what has run")
    return 0


def print_study(name: str, args: Sequence[str]) -> int:
    """Print what has run of a study, or write it as Markdown and as a picture."""
    study = STUDIES[name]
    description = (
        f"Show what has run of {study.about}.\n\nexample:\n"
        f"  nsim table {name} --out docs/table-{name}.md"
    )
    options = parse_options(StudyTableOptions, args, prog="nsim table", description=description)
    if options.out is None:
        print_line(study.to_markdown(options.results, None).rstrip())
        return 0
    written, picture = [options.out], options.out.with_suffix(".png")
    if study.draw is not None:
        study.draw(options.results, picture)
        written.append(picture)
    write_text(options.out, study.to_markdown(options.results, picture.name))
    print_line("\n".join(map(str, written)))
    return 0

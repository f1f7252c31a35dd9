"""`nsim reproduce` and `nsim table` of the studies of adaptation, which are no tables of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from neural_similarity.files import write_text
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import check_folders, parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.train.progress import print_notice
from neural_similarity_paper.recipes.end import ARMS
from neural_similarity_paper.studies.adapt_continual import CONTINUAL
from neural_similarity_paper.studies.adapt_map import MAP_FOLDER
from neural_similarity_paper.studies.adapt_report import (
    draw_map,
    map_to_markdown,
    read_map,
    read_map_rates,
)
from neural_similarity_paper.studies.adapt_runs import ReportLine, run_map
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN_CHANGES, STREAM
from neural_similarity_paper.studies.end_report import end_to_markdown
from neural_similarity_paper.studies.end_search import END_SEARCH, run_search
from neural_similarity_paper.studies.restore import RESTORE, restore_to_markdown, run_restore

OTHER_STUDIES = (CONTINUAL, STREAM, KNOWN_CHANGES)
STUDIES: dict[str, tuple[str, Callable[[Path, Path, ReportLine], None]]] = {
    MAP_FOLDER: ("Where M wins: a map of adaptation", run_map),
    **{study.name: (study.title, study.run) for study in OTHER_STUDIES},
    RESTORE: ("Deblurring: other cameras", run_restore),
    **{
        f"{END_SEARCH}-{arm}": (f"Learning rate and decay of {arm}", partial(run_search, arm))
        for arm in ARMS
    },
}
"""Titles, and what runs, by the name of the table and of the folder of records."""
PAGES: dict[str, tuple[str, Callable[[Path], str]]] = {
    **{study.name: (study.title, study.to_markdown) for study in OTHER_STUDIES},
    "end": ("Trained to the end", end_to_markdown),
    RESTORE: ("Deblurring: other cameras", restore_to_markdown),
}
"""Titles, and the texts of what has run, of studies without a picture."""


@dataclass(frozen=True, kw_only=True)
class StudyRunOptions:
    """Options of `nsim reproduce` with a study."""

    data: Path = Path("data")
    """Folder of the data sets; the network is data/pretrained-cifar10/resnet20.pt."""
    results: Path = Path("results")
    """Folder of the run records."""
    print: bool = False
    """Print the command that runs what is missing, and run nothing."""

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
    title, run_study = STUDIES[name]
    description = (
        f"{title}: run what is missing, most telling runs first. One thread; every run is kept at "
        f"once, and the same command goes on.\n\nexample:\n  nsim reproduce {name} --data data"
    )
    options = parse_options(
        StudyRunOptions, args, prog="nsim reproduce", description=description, flags=True
    )
    if options.print:
        print_line(f"nsim reproduce {name} --data {options.data} --results {options.results}")
        return 0
    run_study(options.data, options.results, print_notice)
    print_line(f"nsim table {name} shows what has run")
    return 0


def print_study(name: str, args: Sequence[str]) -> int:
    """Print what has run of a study, or write it as Markdown, the map with a picture."""
    description = (
        f"{(STUDIES | PAGES)[name][0]}: show what has run.\n\nexample:\n"
        f"  nsim table {name} --out docs/evidence/table-{name}.md"
    )
    options = parse_options(StudyTableOptions, args, prog="nsim table", description=description)
    if name in PAGES:
        return _write_page(PAGES[name][1](options.results), options.out)
    cells, rates = read_map(options.results), read_map_rates(options.results)
    if options.out is None:
        return _write_page(map_to_markdown(cells, rates), None)
    picture = options.out.with_suffix(".png")
    draw_map(cells, picture)
    return _write_page(map_to_markdown(cells, rates, picture.name), options.out, picture)


def _write_page(text: str, out: Path | None, *others: Path) -> int:
    """Print a text, or write it and name all files."""
    if out is not None:
        write_text(out, text)
    print_line(text.rstrip() if out is None else "\n".join(map(str, (out, *others))))
    return 0

"""`nsim reproduce` and `nsim table` of the studies of adaptation, which are no tables of rows."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from neural_similarity.files import write_text
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import check_folders, comma_list, parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.train.progress import print_notice
from neural_similarity_paper.cli import HELP
from neural_similarity_paper.studies.adapt_continual import CONTINUAL
from neural_similarity_paper.studies.adapt_map import MAP
from neural_similarity_paper.studies.adapt_report import draw_study, study_to_markdown
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN_CHANGES, STREAM
from neural_similarity_paper.studies.end import ARMS, END_SEARCH, end_to_markdown, run_search
from neural_similarity_paper.studies.new_heads import (
    NEW_HEADS,
    new_heads_to_markdown,
    run_new_heads,
)
from neural_similarity_paper.studies.restore import RESTORE
from neural_similarity_paper.studies.trials import ReportLine

STUDIES = {study.name: study for study in (MAP, CONTINUAL, STREAM, KNOWN_CHANGES, RESTORE)}
"""Studies of adaptation by the name of their table and of the folder of their records."""
RUNS: dict[str, Callable[[Path, Path, ReportLine], None]] = {
    NEW_HEADS: run_new_heads,
    **{f"{END_SEARCH}-{arm}": partial(run_search, arm) for arm in ARMS},
}
"""What runs of other studies."""
PAGES: dict[str, Callable[[Path], str]] = {"end": end_to_markdown, NEW_HEADS: new_heads_to_markdown}
"""The texts of what has run of other studies."""
TITLES = {
    "end": "Trained to the end",
    NEW_HEADS: "The default with a new head",
    **{f"{END_SEARCH}-{arm}": f"Learning rate and decay of {arm}" for arm in ARMS},
    **{name: study.title for name, study in STUDIES.items()},
}


@dataclass(frozen=True, kw_only=True)
class StudyRunOptions:
    """Options of `nsim reproduce` with a study."""

    data: Path = Path("data")
    """Folder of the data sets; the network is data/pretrained-cifar10/resnet20.pt."""
    results: Path = Path("results")
    """Folder of the run records."""
    only: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ()
    """Cells to run, such as noise-25-10 of adapt-map; a name may hold *."""
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
    description = HELP["reproduce_study"].format(title=TITLES[name], name=name)
    options = parse_options(
        StudyRunOptions, args, prog="nsim reproduce", description=description, flags=True
    )
    cells = [cell.name for cell in STUDIES[name].cells] if name in STUDIES else []
    for pattern in options.only:
        if not fnmatch.filter(cells, pattern):
            known = f"cells of {name}, such as {cells[0]}" if cells else f"no cells of {name}"
            raise UsageError(f"--only must name {known}, got {pattern!r}")
    if options.print:
        only = f" --only {','.join(options.only)}" if options.only else ""
        print_line(f"nsim reproduce {name} --data {options.data} --results {options.results}{only}")
        return 0
    if name in STUDIES:
        STUDIES[name].run(options.data, options.results, print_notice, options.only)
    else:
        RUNS[name](options.data, options.results, print_notice)
    print_line(f"nsim table {name} shows what has run")
    return 0


def print_study(name: str, args: Sequence[str]) -> int:
    """Print what has run of a study, or write it as Markdown, the map with a picture."""
    description = HELP["table_study"].format(title=TITLES[name], name=name)
    options = parse_options(StudyTableOptions, args, prog="nsim table", description=description)
    results, out = options.results, options.out
    picture = out.with_suffix(".png") if out and name == MAP.name else None
    if name in STUDIES:
        text = study_to_markdown(STUDIES[name], results, picture and picture.name)
    else:
        text = PAGES[name](results)
    if picture:
        draw_study(STUDIES[name], results, picture)
    return print_report(text, out, picture)


def print_report(text: str, out: Path | None, picture: Path | None) -> int:
    """Print a page, or write it and name the files."""
    if out is None:
        print_line(text.rstrip())
        return 0
    write_text(out, text)
    print_line("\n".join(str(path) for path in (out, picture) if path))
    return 0

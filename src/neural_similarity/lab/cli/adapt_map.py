"""`nsim reproduce adapt-map`, `nsim table adapt-map`: the map of adaptation is no table of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.files import write_text
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import check_folders, parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.paper.adapt_report import draw_map, map_to_markdown, read_map
from neural_similarity.lab.paper.adapt_runs import run_map
from neural_similarity.lab.train.progress import print_notice

MAP_NAME = "adapt-map"


@dataclass(frozen=True, kw_only=True)
class MapRunOptions:
    """Options of `nsim reproduce adapt-map`."""

    data: Path = Path("data")
    """Folder of the data sets; the network is data/pretrained-cifar10/resnet20.pt."""
    results: Path = Path("results")
    """Folder of the run records."""

    def __post_init__(self) -> None:
        check_folders(data=self.data, results=self.results)


@dataclass(frozen=True, kw_only=True)
class MapTableOptions:
    """Options of `nsim table adapt-map`."""

    results: Path = Path("results")
    """Folder of the run records."""
    out: Path | None = None
    """Markdown file to write, a picture of the same name beside it; by default text is printed."""

    def __post_init__(self) -> None:
        check_folders(results=self.results)
        if self.out is not None and self.out.suffix != ".md":
            raise UsageError(f"--out must end in .md, got {self.out}")


def reproduce_map(args: Sequence[str]) -> int:
    """Run what the map lacks, one run after the other on one thread; it may be stopped any time."""
    description = (
        "Run what the map of adaptation lacks: the choice of rates, then the cells, most telling "
        "ones first. One thread; every run is kept at once, and the same command goes on.\n\n"
        "example:\n  nsim reproduce adapt-map --data data"
    )
    options = parse_options(MapRunOptions, args, prog="nsim reproduce", description=description)
    run_map(options.data, options.results, print_notice)
    print_line(f"nsim table {MAP_NAME} shows the map")
    return 0


def print_map(args: Sequence[str]) -> int:
    """Print the map, or write it as Markdown and as a picture."""
    description = (
        "Show the cells of the map of adaptation that have run.\n\nexample:\n"
        "  nsim table adapt-map --out docs/table-adapt-map.md"
    )
    options = parse_options(MapTableOptions, args, prog="nsim table", description=description)
    cells = read_map(options.results)
    if options.out is None:
        print_line(map_to_markdown(cells).rstrip())
        return 0
    picture = options.out.with_suffix(".png")
    draw_map(cells, picture)
    write_text(options.out, map_to_markdown(cells, picture.name))
    print_line(f"{options.out}\n{picture}")
    return 0

"""`nsim reproduce adapt-map`: the map of adaptation, which is no table of recipes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import check_folders, parse_options
from neural_similarity.lab.paper.adapt_runs import run_map
from neural_similarity.lab.train.progress import print_notice

NAME = "adapt-map"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `nsim reproduce adapt-map`."""

    data: Path = Path("data")
    """Folder of the data sets; the network is data/pretrained-cifar10/resnet20.pt."""
    results: Path = Path("results")
    """Folder of the run records."""

    def __post_init__(self) -> None:
        check_folders(data=self.data, results=self.results)


def reproduce(args: Sequence[str]) -> int:
    """Run what the map lacks, one run after the other on one thread; it may be stopped any time."""
    description = (
        "Run what the map of adaptation lacks: the choice of rates, then the cells, most telling "
        "ones first. One thread; every run is kept at once, and the same command goes on.\n\n"
        "example:\n  nsim reproduce adapt-map --data data"
    )
    options = parse_options(RunOptions, args, prog="nsim reproduce", description=description)
    run_map(options.data, options.results, print_notice)
    print_line(f"nsim table {NAME} shows the map")
    return 0

"""`nsim theory`: section 5 of the paper as experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from neural_similarity.lab.cli.commands import print_line, require_known_name
from neural_similarity.lab.cli.parsing import check_folders, parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity_paper.cli import HELP
from neural_similarity_paper.statistics import LEAST_SEEDS
from neural_similarity_paper.theory import EXPERIMENTS, run_experiment


@dataclass(frozen=True, kw_only=True)
class TheoryOptions:
    """Options of `nsim theory`."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """The experiment to run, or all."""
    runs: tuple[Path, ...] = ()
    """Run folders for `spectra`, which `all` leaves out where none is given."""
    seeds: int = 5
    """Number of seeds, for the other experiments."""
    out: Path = Path("results/theory")
    """Folder for NAME.json and NAME.png."""

    def __post_init__(self) -> None:
        if self.seeds < LEAST_SEEDS:
            raise ValueError(f"`seeds` must be at least {LEAST_SEEDS}, got {self.seeds}")
        check_folders(out=self.out)


def theory(args: Sequence[str]) -> int:
    """Run experiments and print the files that they write."""
    listed = "\n".join(f"  {name:<9}{question}" for name, (question, _) in EXPERIMENTS.items())
    description = HELP["theory"].format(listed=listed)
    options = parse_options(TheoryOptions, args, prog="nsim theory", description=description)
    require_known_name("experiment", options.name, [*EXPERIMENTS, "all"])
    names = [options.name] if options.name != "all" else list(EXPERIMENTS)
    if not options.runs:
        if options.name == "spectra":
            raise UsageError("nsim theory spectra needs run folders, see --runs")
        names = [name for name in names if name != "spectra"]
    for name in names:
        for path in run_experiment(name, options.out, seeds=options.seeds, runs=options.runs):
            print_line(str(path))
    return 0

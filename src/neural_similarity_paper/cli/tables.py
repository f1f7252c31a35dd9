"""`nsim reproduce`, `nsim table` and `nsim record`: the paper's tables from run records."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from neural_similarity.choices import require_count, require_least
from neural_similarity.lab.cli.commands import print_line, require_known_name
from neural_similarity.lab.cli.parsing import (
    check_folders,
    check_seeds,
    comma_list,
    parse_integer,
    parse_options,
)
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.session import open_run
from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.progress import format_clock, print_notice
from neural_similarity.lab.train.recipe import Recipe, scale_recipe
from neural_similarity_paper import tables
from neural_similarity_paper.cli import HELP, studies
from neural_similarity_paper.tables import TABLES, Line, Row, Scope

RESULTS = Path("results")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of both commands on a table."""

    table: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TABLE")]
    """1, 2, 3, 4, 5, 8, response (of the authors: ResNets), or one of the studies ablations,
    costs, light, rivals, sharing, structures, shapes, bounds, time, pretrained, adapt, adapt-lite0,
    adapt-flowers and adapt-cifar; 4-released and 8-released are trained as the authors' released
    code does; 6 is few-shot learning; end takes fewer options as a table; adapt-map,
    adapt-continual, adapt-stream, adapt-known, adapt-restore and new-heads take only --results, for
    `nsim table` --out, for `nsim reproduce` --data, --only CELLS and --print."""
    results: Path = RESULTS
    """Folder of the run records."""

    def __post_init__(self) -> None:
        require_known_name("table", self.table, TABLES)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(TableOptions, Scope):
    """Options of `nsim reproduce`."""

    seeds: Annotated[tuple[int, ...], comma_list(parse_integer, "S,S,...")] = (1, 2, 3)
    """Seeds that every row is run with."""
    only: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ()
    """Recipes to run of those in the table; a name may hold *."""
    print: bool = False
    """Print the commands, one line a run, and run nothing."""
    stage: int | None = None
    """With --print, only the lines of a stage; those of stage 1 need no other line."""
    jobs: int = 1
    """Runs at a time, each of one thread."""
    shots: Annotated[tuple[int, ...], comma_list(parse_integer, "N,N,...")] = (5, 1)
    """Labelled images of each class of a task, for table 6."""
    tasks: int = 2_000
    """Number of test tasks, for table 6."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # These raise here, where errors are those of usage.
        scale_recipe(Recipe(), self.budget)
        _ = self.chosen_rows
        require_count("jobs", self.jobs)
        if self.stage is not None:
            require_count("stage", self.stage)
            if not self.print:
                raise UsageError("--stage goes with --print; without, stages run one after another")
        require_least("tasks", self.tasks, 2)
        choose_runtime(self.device, "fp32")
        check_seeds(self.seeds)
        check_folders(results=self.results, runs=self.runs)
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"`shots` must be distinct, got {self.shots}")

    @property
    def chosen_rows(self) -> list[Row]:
        return TABLES[self.table].choose_rows(self.only, self.shots)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TableOptions):
    """Options of `nsim table`."""

    budget: float | None = None
    """Budget of the runs; the default is the one at which most rows have runs."""
    costs: Path = Path("benchmarks/recipes.json")
    """Times of updates that `python -m benchmarks recipes` saved; left out where there are none."""
    out: Path | None = None
    """Markdown file to write, a picture of the same name beside it; by default text is printed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None:
            scale_recipe(Recipe(), self.budget)
        if self.out is not None and self.out.suffix != ".md":
            raise ValueError(f"`out` must end in .md, got {self.out}")
        if self.results != RESULTS and not self.results.is_dir():
            raise UsageError(f"--results must be a folder of records, got {self.results}")


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options of `nsim record`."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """Folders of finished runs."""
    results: Path = RESULTS
    """Folder of the run records."""

    def __post_init__(self) -> None:
        check_folders(results=self.results)


def reproduce(args: Sequence[str]) -> int:
    """Run what a table lacks, or print its commands; 0 if every run is recorded in the end."""
    if args and args[0] in studies.STUDIES | studies.RUNS:
        return studies.reproduce_study(args[0], args[1:])
    options = parse_options(
        ReproduceOptions, args, prog="nsim reproduce", description=HELP["reproduce"], flags=True
    )
    wanted = tables.wanted_records(options.chosen_rows, options.seeds, options.tasks)
    lines = tables.missing_lines(wanted, options)
    print_notice(_plan_text(lines, len(wanted), options))
    if options.print:
        for line in lines:
            if options.stage in (None, line.stage):
                print_line(str(line))
        return 0
    failed, stopped = tables.run_lines(lines, options.jobs)
    for key, reason in failed.items():
        print_notice(f"nsim: {key}: {reason}")
    if stopped is not None:
        print_notice("nsim: stopped, all is saved; the same command goes on")
        return 128 + stopped
    if failed:
        return 1
    print_line(f"nsim table {options.table} --budget {options.budget:g} shows the table")
    return 0


def table(args: Sequence[str]) -> int:
    """Print a table with our runs, or write it as Markdown and as a picture."""
    if args and args[0] in studies.STUDIES | studies.PAGES:
        return studies.print_study(args[0], args[1:])
    options = parse_options(
        ShowOptions, args, prog="nsim table", description=HELP["table"], flags=True
    )
    if not options.results.is_dir():
        sys.stderr.write(f"nsim: no records in {options.results}/\n")
    costs = tables.read_costs(options.costs) if options.costs.exists() else None
    facts = {"budget": options.budget, "results": options.results, "costs": costs}
    report = tables.make_report(TABLES[options.table], **facts)
    picture = None if options.out is None or report.table.mixed else options.out.with_suffix(".png")
    if picture:
        tables.draw_report(report, picture)
    text = tables.to_markdown(report, picture and picture.name)
    return studies.print_report(text, options.out, picture)


def record(args: Sequence[str]) -> int:
    """Write the records of finished runs."""
    options = parse_options(RecordOptions, args, prog="nsim record", description=HELP["record"])
    if not options.runs:
        raise UsageError("nsim record needs at least one run folder")
    for path in options.runs:
        for written in tables.write_records(open_run(path), options.results):
            print_line(str(written))
    return 0


def _plan_text(lines: Sequence[Line], wanted: int, options: ReproduceOptions) -> str:
    """How many records are missing, in how many stages their runs go, and how long they take."""
    missing = sum(len(line.records) for line in lines)
    title = TABLES[options.table].title
    text = f"{title}, budget {options.budget:g}: {missing} of {wanted} records missing"
    if not lines:
        return text
    stages = max(line.stage for line in lines)
    text += f"; runs: {len(lines)}" + (f", in {stages} stages" if stages > 1 else "")
    device = choose_runtime(options.device, "fp32").device.type
    seconds, unknown = tables.training_seconds(lines, options, device)
    text += f"; about {format_clock(seconds)} of training, one at a time, by their records"
    return text + (f"; without records: {unknown}" if unknown else "")

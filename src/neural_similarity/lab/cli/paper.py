"""`nsim reproduce`, `nsim table` and `nsim record`: the paper's tables from run records."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, cast

import tyro

from neural_similarity.choices import require_least
from neural_similarity.files import write_text
from neural_similarity.lab import paper
from neural_similarity.lab.cli.commands import require, say, say_json
from neural_similarity.lab.cli.parsing import (
    agreed,
    check_folders,
    check_seeds,
    integer,
    listed,
    parse,
)
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.paper import TABLES, Job, Outcome, Plan, Scope, Table
from neural_similarity.lab.paper.few_shot_table import SHOTS, TITLES
from neural_similarity.lab.paper.plan import Wanted
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.session import open_run
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.task import FewShotTask, check_tasks
from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.progress import clock, counter
from neural_similarity.lab.train.recipe import Recipe, scaled
from neural_similarity.lab.train.runtime import PrecisionChoice

FEW_SHOT = {"6": "mini", "6-cifar-fs": "cifar-fs", "6-fc100": "fc100"}
"""The tables of few-shot learning, whose runs are evaluated on tasks, and their data."""
RESULTS = Path("results")
ROUGHLY = "~"


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of both commands on a table."""

    table: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TABLE")]
    """1, 2, 3, 4, 5, 8, response (of the authors: ResNets), or one of the studies ablations,
    costs, rivals, sharing, shapes, bounds, pretrained, adapt, adapt-flowers and adapt-cifar;
    1-cifar100 and so on for rows on CIFAR-100, 5-mini100 and response-mini100 on Mini-ImageNet; 6,
    6-cifar-fs and 6-fc100 are few-shot learning."""
    variant: Literal["paper", "released"] = "paper"
    """Recipes as the paper's text has them, or as the authors' released code trains (CIFAR)."""
    results: Path = RESULTS
    """Folder of the run records."""

    def __post_init__(self) -> None:
        require("table", self.table, (*TABLES, *FEW_SHOT))
        if self.is_few_shot and self.variant != "paper":
            raise UsageError("--variant is for tables on CIFAR; table 6 has one variant")

    @property
    def is_few_shot(self) -> bool:
        """Whether runs are evaluated on tasks."""
        return self.table in FEW_SHOT

    @property
    def wanted(self) -> Table:
        """The table in the variant."""
        return paper.in_variant(TABLES[self.table], self.variant)

    @property
    def words(self) -> str:
        """Table and variant as on a command line."""
        return self.table + ("" if self.variant == "paper" else f" --variant {self.variant}")


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(TableOptions):
    """Options of `nsim reproduce`."""

    budget: float = 1.0
    """Factor on steps and drops, the same for all rows; below 1 a reduced schedule."""
    seeds: Annotated[tuple[int, ...], listed(integer, "S,S,...")] = (1, 2, 3)
    """Seeds that every row is run with."""
    only: Annotated[tuple[str, ...], listed(str, "NAME,NAME,...")] = ()
    """Recipes to run of those in the table; a name may hold *."""
    jobs: int = field(default_factory=paper.side_by_side)
    """Processes side by side, each of one thread: two on a CPU of several cores, on a GPU one."""
    precision: PrecisionChoice = "auto"
    """Precision of new runs: the faster one here, or that of the other records."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps or xpu."""
    shots: Annotated[tuple[int, ...], listed(integer, "N,N,...")] = SHOTS
    """Labelled images of each class of a task, for table 6."""
    tasks: int = 2_000
    """Number of test tasks, for table 6."""
    data: Path = Path("data")
    """Folder of the data sets."""
    runs: Path = Path("runs")
    """Folder of the run folders, RECIPE-BUDGET-seedSEED[-all], and of their logs."""
    yes: bool = False
    """Start without asking for confirmation."""
    dry_run: bool = False
    """Show the plan and start nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # These raise here, where errors are those of usage.
        scaled(Recipe(), self.budget)
        self.records()
        require_least("jobs", self.jobs)
        require_least("tasks", self.tasks, 2)
        choose_runtime(self.device, "fp32")
        check_seeds(self.seeds)
        check_folders(results=self.results, runs=self.runs)
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"`shots` must be distinct, got {self.shots}")

    def records(self) -> list[Wanted]:
        """The records that the table needs."""
        if self.is_few_shot:
            data = FEW_SHOT[self.table]
            return paper.wanted_evaluations(self.seeds, self.shots, self.only, data)
        return paper.wanted_runs(self.wanted, self.seeds, self.only)

    @property
    def scope(self) -> Scope:
        """The settings that all runs share."""
        return Scope(
            budget=self.budget,
            results=self.results,
            runs=self.runs,
            precision=self.precision,
            tasks=self.tasks,
        )


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TableOptions):
    """Options of `nsim table`."""

    budget: float | None = None
    """Budget of the runs; the default is the one at which most rows have runs."""
    costs: Path = Path("benchmarks/recipes.json")
    """Times of updates that `python -m benchmarks recipes` saved; left out where there are none."""
    out: Path | None = None
    """Markdown file to write, a picture of the same name beside it; by default text is printed."""
    json: bool = False
    """Print the numbers as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None:
            scaled(Recipe(), self.budget)
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
    """Show and run what a table lacks; 0 if every run is recorded in the end."""
    description = (
        "Run the rows of a table of the paper that have no record yet, and record them. Finished "
        "runs are never repeated, interrupted ones go on. Those of table 6 are trained on training "
        "classes, and but for MAML, ANIL and meta-learned NSN anew on those of validation as well, "
        "and evaluated.\n\nexamples:\n"
        "  nsim reproduce 4 --budget 0.125 --data data\n"
        "  nsim reproduce 4 --only cifar10-dynamic-uns --seeds 1 --budget 0.125 --yes\n"
        "  nsim reproduce 6 --budget 0.25 --seeds 1 --shots 5 --only mini-cnn4,mini-dynamic\n"
        "  nsim reproduce 2 --dry-run"
    )
    options = parse(
        ReproduceOptions, args, prog="nsim reproduce", description=description, flags=True
    )
    plan = paper.make_plan(options.records(), options.scope)
    say(_describe(plan, options))
    if options.dry_run or not plan.jobs or not agreed(options.yes):
        return 0
    _check_tasks(plan, options)
    executor = paper.Executor(
        places=options.jobs,
        results=options.results,
        data_root=options.data,
        device=options.device,
    )
    with paper.show(plan.jobs) as display:
        outcome = executor(plan.jobs, display)
    return _conclude(outcome, options)


def _check_tasks(plan: Plan, options: ReproduceOptions) -> None:
    """Check, before training, that the data have enough images for the test tasks."""
    begins = {job.folder for job in plan.jobs if job.unit == "step"}
    needed = {
        (cast(FewShotRecipe, RECIPES[one.run.name]), one.shots)
        for one in plan.lacking
        if one.method is not None and options.scope.folder(one.run) in begins
    }
    for recipe, shots in needed:
        with counter("images decoded") as decoded:
            split = FewShotTask.load(recipe, options.data, decoded).split
        check_tasks(split, "test", paper.sizes(shots))


def table(args: Sequence[str]) -> int:
    """Print a table with our runs, or write it as Markdown and as a picture."""
    description = (
        "Show a table of the paper beside our runs, built from their records.\n\nexamples:\n"
        "  nsim table 4\n"
        "  nsim table 4 --budget 0.125 --out docs/table-4.md"
    )
    options = parse(ShowOptions, args, prog="nsim table", description=description, flags=True)
    if not options.results.is_dir():
        sys.stderr.write(f"nsim: no records in {options.results}/\n")
    if options.is_few_shot:
        return _show_few_shot(options)
    wanted, results = options.wanted, options.results
    budget = options.budget or paper.fullest_budget([row.recipe for row in wanted.rows], results)
    costs = paper.read_costs(options.costs) if options.costs.exists() else None
    report = paper.make_report(wanted, budget=budget, results=results, costs=costs)
    if options.json:
        say_json(paper.report_rows(report))
        return 0
    if options.out is None:
        sys.stdout.write(paper.to_markdown(report))
        return 0
    picture = options.out.with_suffix(".png")
    paper.draw(report, picture)
    write_text(options.out, paper.to_markdown(report, picture.name))
    say(f"{options.out}\n{picture}")
    return 0


def _show_few_shot(options: ShowOptions) -> int:
    """Print Table 6 or write it."""
    what = options.results, options.budget, FEW_SHOT[options.table]
    if options.json:
        say_json(paper.few_shot_rows(*what))
        return 0
    text = paper.few_shot_markdown(*what)
    if options.out is None:
        sys.stdout.write(text)
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    say(str(options.out))
    return 0


def record(args: Sequence[str]) -> int:
    """Write the records of finished runs."""
    description = (
        "Write the records of finished runs, of few-shot runs those of their evaluations. Runs "
        "with overridden fields have none."
        "\n\nexample:\n  nsim record runs/cifar10-cnn-seed1"
    )
    options = parse(RecordOptions, args, prog="nsim record", description=description)
    if not options.runs:
        raise UsageError("nsim record needs at least one run folder")
    for path in options.runs:
        for written in paper.write_records(open_run(path), options.results):
            say(str(written))
    return 0


def _describe(plan: Plan, options: ReproduceOptions) -> str:
    """The plan: jobs, states and times."""
    few_shot = options.is_few_shot
    title = TITLES[FEW_SHOT[options.table]] if few_shot else options.wanted.title
    counts = f"{len(plan.lacking)} to run, {plan.recorded} recorded"
    lines = [f"{title}, budget {options.budget:g}: {counts}", *map(_line, plan.jobs)]
    names = [] if options.is_few_shot else paper.chosen(options.wanted, options.only)
    if without := [name for name in names if name not in RECIPES]:
        lines.append(f"no recipe, left out: {', '.join(without)}")
    if plan.jobs:
        lines.append(_duration(plan, options.jobs))
    else:
        lines.append(f"nsim table {options.words} --budget {options.budget:g} shows what there is")
    return "\n".join(lines)


def _line(job: Job) -> str:
    time = ROUGHLY * job.rough + clock(job.seconds)
    states = {
        "new": f"{job.steps:,} {job.unit}s",
        "interrupted": f"goes on from {job.unit} {job.done:,} of {job.steps:,}",
        "finished": "is finished, to be recorded",
    }
    return f"  {job.title:<36}  {states[job.state]:<36}  {time:>9}"


def _duration(plan: Plan, places: int) -> str:
    rough = any(job.rough for job in plan.jobs)
    more = f" ({ROUGHLY}: by multiplications, as no such machine has a record)" if rough else ""
    return f"time: about {clock(paper.makespan(plan.jobs, places))}, {places} at a time{more}"


def _conclude(outcome: Outcome, options: ReproduceOptions) -> int:
    """Print the outcome and the next command; return the exit code."""
    say(f"{len(outcome.recorded)} recorded, {len(outcome.failed)} failed")
    for title, reason in outcome.failed.items():
        sys.stderr.write(f"nsim: {title}: {reason}\n")
    if outcome.stopped is not None:
        sys.stderr.write("nsim: stopped, all is saved; the same command goes on\n")
        return 128 + outcome.stopped
    if outcome.failed:
        sys.stderr.write(f"nsim: what failed printed more into {options.runs}/*.log\n")
        return 1
    say(f"nsim table {options.words} --budget {options.budget:g} shows the table")
    return 0

"""`nsim reproduce 6`: what Table 6 lacks."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from neural_similarity.choices import require_least
from neural_similarity.lab import paper
from neural_similarity.lab.cli.commands import say
from neural_similarity.lab.cli.counter import counter
from neural_similarity.lab.cli.parsing import (
    agreed,
    check_folders,
    check_seeds,
    integer,
    listed,
    parse,
)
from neural_similarity.lab.tasks.few_shot.evaluate import require_processes
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train import Interrupted, RunError, choose_runtime
from neural_similarity.lab.train.recipe import scaled

DESCRIPTION = """Train, evaluate and record what table 6 lacks, row by row: on training classes, and
but for MAML, ANIL and meta-learned NSN anew on those of validation as well. Finished runs and
evaluations are used, what was interrupted goes on. To run two at once, give each its
own --only.

examples:
  nsim reproduce 6 --budget 0.25 --seeds 1 --shots 5 --only mini-cnn4,mini-dynamic
  nsim reproduce 6 --dry-run"""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What `nsim reproduce 6` takes."""

    table: Annotated[tyro.conf.Positional[Literal["6"]], tyro.conf.arg(metavar="TABLE")] = "6"
    """6, few-shot learning."""
    budget: float = 1.0
    """Factor on steps and drops."""
    seeds: Annotated[tuple[int, ...], listed(integer, "S,S,...")] = (1, 2, 3)
    """Seeds of every run."""
    only: Annotated[tuple[str, ...], listed(str, "NAME,NAME,...")] = ()
    """Recipes to run of those in the table; a name may hold *."""
    shots: Annotated[tuple[int, ...], listed(integer, "N,N,...")] = (5, 1)
    """Labelled images of each class of a task."""
    tasks: int = 2_000
    """Number of test tasks."""
    data: Path = Path("data")
    """Folder of the data sets."""
    results: Path = Path("results")
    """Folder of the records."""
    runs: Path = Path("runs")
    """Folder of the run folders, RECIPE-BUDGET-seedSEED[-all]."""
    device: str = "auto"
    """auto, cpu or cuda."""
    processes: int = 1
    """How many evaluate static NSN, MAML and whatever else computes on every task's images."""
    yes: bool = False
    """Start without asking."""
    dry_run: bool = False
    """Show the plan only."""

    def __post_init__(self) -> None:
        # These raise here, where errors are those of usage.
        scaled(FewShotRecipe(), self.budget)
        paper.wanted_evaluations(self.seeds, self.shots, self.only)
        require_least("tasks", self.tasks, 2)
        require_processes(self.processes, choose_runtime(self.device, "fp32").device)
        check_seeds(self.seeds)
        check_folders(results=self.results, runs=self.runs)
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"`shots` must differ, got {self.shots}")


def reproduce(args: Sequence[str]) -> int:
    """Do what the table lacks, after showing it."""
    options = parse(
        ReproduceOptions, args, command="reproduce", description=DESCRIPTION, flags=True
    )
    work = paper.Reproduction(
        budget=options.budget,
        tasks=options.tasks,
        results=options.results,
        runs=options.runs,
        data_root=options.data,
        device=options.device,
        processes=options.processes,
    )
    wanted = paper.wanted_evaluations(options.seeds, options.shots, options.only)
    lacking = work.lacking(wanted)
    say(f"table 6: {len(lacking)} to evaluate, {len(wanted) - len(lacking)} recorded")
    for one in lacking:
        say(f"  {one.title}")
    if folders := work.trainings(lacking):
        say(f"to train for them, of {options.runs}: {', '.join(path.name for path in folders)}")
    if options.dry_run or not lacking or not agreed(options.yes):
        return 0
    failed = _complete(work, lacking)
    for title, reason in failed.items():
        sys.stderr.write(f"nsim: {title}: {reason}\n")
    return 1 if failed else 0


def _complete(work: paper.Reproduction, lacking: Sequence[paper.Wanted]) -> dict[str, str]:
    """Do all that can be done; what went wrong, by the title."""
    failed: dict[str, str] = {}
    broken: dict[paper.RunKey, str] = {}
    for one in lacking:
        try:
            with counter("images decoded") as decoded:
                work.check(one, decoded)
            _train_for(work, one, broken)
            with counter("tasks") as count:
                paths = work.complete(one, count)
        except Interrupted:
            raise
        except Exception as error:  # Whatever is wrong with one run, the others go on.
            failed[one.title] = str(error) or repr(error)
        else:
            say(f"{one.title}: {len(paths)} records of the run in {paths[0].parent}")
    return failed


def _train_for(
    work: paper.Reproduction, one: paper.Wanted, broken: dict[paper.RunKey, str]
) -> None:
    """Train what an evaluation takes; what fails is not tried again."""
    for key in work.needed(one):
        if key in broken:
            raise RunError(broken[key])
        try:
            work.run(*key)
        except Interrupted:
            raise
        except Exception as error:
            broken[key] = str(error) or repr(error)
            raise

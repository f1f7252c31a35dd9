"""`nsim train` and `nsim evaluate` of few-shot recipes and runs."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from neural_similarity.choices import require_count, require_least
from neural_similarity.lab import paper
from neural_similarity.lab.cli.commands import Commands, dispatch, require, say
from neural_similarity.lab.cli.counter import counter
from neural_similarity.lab.cli.few_shot_reproduce import reproduce
from neural_similarity.lab.cli.paper import record
from neural_similarity.lab.cli.parsing import named_recipe, parse, require_only
from neural_similarity.lab.cli.recipes import recipes
from neural_similarity.lab.data import ClassSplit
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.recipes import FEW_SHOT_RECIPES
from neural_similarity.lab.recipes.few_shot import STARTS
from neural_similarity.lab.tasks.few_shot import session
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import (
    TaskList,
    TaskSizes,
    draw_tasks,
    read_tasks,
    write_tasks,
)
from neural_similarity.lab.train import read_run
from neural_similarity.lab.train.files import read_json
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.progress import clock
from neural_similarity.lab.train.recipe import scaled
from neural_similarity.lab.train.run import require_finished

DEFAULT, DATA_ROOT = "fewshot-quickstart", "data"
WAYS, QUERIES = 5, 15
"""Of a task, where the data have as many."""
USUAL = {"tasks": 2_000, "task_seed": 0}
TASK_OPTIONS = ("ways", "shots", "queries", *USUAL)
"""Options that say what tasks are."""
RESUMED_WITH = ("--resume", "--data", "--device")
TRAIN_DESCRIPTION = """Train for few-shot learning: nsim train [RECIPE] [--field value ...]

examples:
  nsim train fewshot-quickstart             about a minute
  nsim train mini-cnn4 --data data --seed 1
  nsim train --retrain runs/mini-cnn4-seed1 on validation classes too, see --retrain
  nsim train mini-meta-static --start runs/mini-cnn4-seed1
  nsim train --resume runs/mini-cnn4-seed1  continue exactly"""
EVALUATE_DESCRIPTION = """Evaluate a run on tasks of test classes, the same for every method.

examples:
  nsim evaluate runs/fewshot-quickstart-seed0
  nsim evaluate runs/mini-cnn4-seed1 --method static-nsn --ways 5 --shots 5 --tasks 600"""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `nsim train` takes."""

    budget: float = 1.0
    """Factor on steps and drops, each rounded to the nearest step."""
    data: Path | None = None
    """Folder of the data sets; the default is data, or the run's own with --resume, --retrain."""
    out: Path | None = None
    """Run folder; the default is runs/RECIPE[-train+val]-seedSEED. None is ever overwritten."""
    resume: Path | None = None
    """Run folder to continue; of the other options only --data and --device may be given."""
    retrain: Path | None = None
    """Finished run with --select-on val, to be trained anew on validation classes as well, for as
    many epochs as were best, or as many updates if by tasks; of the other options only --data,
    --device, --out and --start may be given, the latter for what starts from a run: one on
    validation classes as well."""
    device: str = "auto"
    """auto, cpu or cuda."""
    recipe: Annotated[FewShotRecipe, tyro.conf.arg(name="")]
    """Settings."""

    def __post_init__(self) -> None:
        scaled(self.recipe, self.budget)  # Raises here, where errors are those of usage.


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What `nsim evaluate` takes."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    method: str | None = None
    """Another method on the network of a run that was trained to name the base classes:
    fine-tuning, nearest-neighbour, static-nsn (of a network without dynamic M), k-shot."""
    ways: int | None = None
    """Classes of a task; the default is 5, or all test classes where there are fewer, or that of
    the training for MAML and its kin, which take no other."""
    shots: int | None = None
    """Labelled images of each class; the default is that of the training."""
    queries: int | None = None
    """Images of each class to be recognised; the default is 15, or what the smallest class has
    beside its labelled images, where that is fewer."""
    tasks: int | None = None
    """Number of tasks; the default is 2,000."""
    task_seed: int | None = None
    """Of the list of tasks; the default is 0."""
    task_list: Path | None = None
    """File of the list of tasks: used if it is there, else written."""
    part: Literal["test", "val"] = "test"
    """Classes that the tasks are of."""
    batch_norm: Literal["running", "support", "transductive"] | None = None
    """Whose statistics normalise queries; the default is the method's own, always inductive."""
    data: Path | None = None
    """Folder of the data sets; the default is the one that the run was trained from."""
    device: str = "auto"
    """auto, cpu or cuda."""
    processes: int = 1
    """How many share the tasks out, and the threads with them, where a method computes on every
    task's images, such as static-nsn or maml; others take seconds. Of a GPU it is 1."""

    def __post_init__(self) -> None:
        require_count("processes", self.processes)
        if self.method is not None:
            require("method", self.method, METHODS)
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1), ("tasks", 2)):
            if (value := getattr(self, name)) is not None:
                require_least(name, value, least)


def fewshot(args: Sequence[str]) -> int:
    """Run one of the older commands, and say what it is called now."""
    if args and args[0] in COMMANDS:
        sys.stderr.write(f"nsim: `nsim fewshot {args[0]}` is `{COMMANDS[args[0]][1]}` now\n")
    return dispatch(
        args,
        COMMANDS,
        prog="nsim fewshot",
        kind="command of nsim fewshot",
        about="Older words for few-shot learning, and those that took their place.",
        examples="  nsim train fewshot-quickstart && nsim evaluate runs/fewshot-quickstart-seed0",
    )


def train(args: Sequence[str]) -> int:
    """Train, resume or retrain, then say how to evaluate."""
    keep_freed_memory()
    name, rest = named_recipe(args, FEW_SHOT_RECIPES, "few-shot recipe")
    default = TrainOptions(recipe=FEW_SHOT_RECIPES[name or DEFAULT])
    options = parse(
        TrainOptions, rest, command="train", description=TRAIN_DESCRIPTION, default=default
    )
    if options.resume is not None:
        require_only(RESUMED_WITH, name, rest)
        with counter("images decoded") as decoded:
            run = session.resume(
                options.resume, data_root=options.data, device=options.device, progress=decoded
            )
    elif options.retrain is not None:
        require_only(("--retrain", "--out", "--start", *RESUMED_WITH[1:]), name, rest)
        with counter("images decoded") as decoded:
            run = session.retrain(
                read_run(options.retrain, FewShotRun),
                out=options.out,
                data_root=options.data,
                device=options.device,
                start=options.recipe.start,
                progress=decoded,
            )
    else:
        run = _train(name or DEFAULT, options)
    _report(run)
    return 0


def evaluate(args: Sequence[str]) -> int:
    """Print the accuracy over tasks and where it is recorded; go on with what was interrupted."""
    keep_freed_memory()
    options = parse(EvaluateOptions, args, command="evaluate", description=EVALUATE_DESCRIPTION)
    run = read_run(options.run, FewShotRun)
    require_finished(run)
    with counter("images decoded") as decoded:
        split = session.load_data(run, options.data, decoded)
    tasks = _tasks(options, run.recipe, split)
    with counter("tasks") as count:
        evaluation, path = paper.evaluate_run(
            run,
            split,
            tasks,
            method=options.method,
            statistics=options.batch_norm,
            device=options.device,
            processes=options.processes,
            progress=count,
        )
    say(_describe(evaluation))
    say(f"accuracies of all tasks in {path}")
    return 0


COMMANDS: Commands = {
    "train": (train, "nsim train RECIPE"),
    "evaluate": (evaluate, "nsim evaluate RUN"),
    "record": (record, "nsim record RUN..."),
    "reproduce": (reproduce, "nsim reproduce 6"),
    "recipes": (recipes, "nsim recipes"),
}
"""The older words, and those that took their place."""


def _train(name: str, options: TrainOptions) -> FewShotRun:
    if options.recipe.start is None and name in STARTS:
        expected = f"expects --start RUN from {STARTS[name]}"
        sys.stderr.write(f"nsim: {name} {expected}; training from scratch\n")
    with counter("images decoded") as decoded:
        return session.train(
            options.recipe,
            name=name,
            budget=options.budget,
            out=options.out,
            data_root=options.data or DATA_ROOT,
            device=options.device,
            progress=decoded,
        )


def _tasks(options: EvaluateOptions, recipe: FewShotRecipe, split: ClassSplit) -> TaskList:
    """The list of tasks: read from the file that is named, if it is there, or drawn."""
    images, path = split.part(options.part), options.task_list
    given = {name: getattr(options, name) for name in TASK_OPTIONS}
    if path is not None and path.exists():
        tasks = read_tasks(path)
        tasks.check(split.digest, options.part, images, path)
        _require_agreement(tasks, given, path)
        return tasks
    ways = recipe.ways if METHODS[recipe.method].fixed_ways else min(WAYS, len(images.classes))
    shots = options.shots or recipe.shots
    left = int(images.labels.bincount(minlength=len(images.classes)).min()) - shots
    usual = {"ways": ways, "shots": shots, "queries": max(1, min(QUERIES, left))} | USUAL
    chosen = {name: usual[name] if value is None else value for name, value in given.items()}
    count, seed = chosen.pop("tasks"), chosen.pop("task_seed")
    sizes = TaskSizes(**chosen)
    tasks = draw_tasks(images, sizes, count, seed=seed, data=split.digest, part=options.part)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tasks(path, tasks)
    return tasks


def _require_agreement(tasks: TaskList, given: dict[str, int | None], path: Path) -> None:
    """Refuse options that a list which is there already does not have."""
    held = {**asdict(tasks.sizes), "tasks": len(tasks), "task_seed": tasks.seed}
    for name, value in given.items():
        if value not in (None, held[name]):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} must be that of {path}, {held[name]}, got {value}")


def _report(run: FewShotRun) -> None:
    summary = read_json(run.summary)
    text = f"{summary['steps']:,} steps in {clock(summary['seconds'])}"
    if best := summary.get("best_checkpoint"):
        accuracy = 100 * best["validation_accuracy"]
        statistics = METHODS[run.recipe.method].statistics
        text += (
            f"; best on validation classes at step {best['step']:,}: {accuracy:.2f} %, "
            f"batch norm by {statistics} statistics"
        )
    say(f"{text}\nrun folder {run.path}; nsim evaluate {run.path}")


def _describe(evaluation: paper.Evaluation) -> str:
    sizes, summary = evaluation.sizes, evaluation.summary
    return (
        f"{evaluation.method}: {100 * summary['accuracy']:.2f} ± {100 * summary['reach']:.2f} %, "
        f"{sizes.ways} ways, {sizes.shots} shots, {sizes.queries} queries a class, "
        f"{evaluation.tasks['count']:,} tasks of {evaluation.tasks['part']} classes\n"
        f"trained on {evaluation.config.train_on}, step {evaluation.checkpoint['step']:,} "
        f"({evaluation.checkpoint['which']}), batch norm by {evaluation.statistics} statistics, "
        f"{summary['parameters']:,} parameters, {clock(summary['seconds'])}"
    )

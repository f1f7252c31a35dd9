"""`nsim train`: a recipe of any kind into a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from neural_similarity.choices import require_text
from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import named_recipe, parse_options, require_only
from neural_similarity.lab.errors import UsageError, content_errors, reason_of
from neural_similarity.lab.recipes import RECIPES, STARTS, in_variant
from neural_similarity.lab.tasks import command_task, task_of
from neural_similarity.lab.train import Run, TrainingRecipe, choose_runtime, distributed
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json, scale_recipe
from neural_similarity.lab.train.run import CONFIG, read_facts
from neural_similarity.lab.train.schedule import scaled_steps

DEFAULT, DATA_ROOT = "quickstart", "data"
BESIDE = ("--data", "--device")


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What `nsim train` starts from, and where."""

    budget: float = 1.0
    """Factor on steps and drops, each rounded to the nearest step."""
    config: Path | None = None
    """config.json of a run, or its folder: recipe, settings and budget to start from."""
    resume: Path | None = None
    """Run folder to continue; of the other options only --data and --device may be given."""
    retrain: Path | None = None
    """Finished few-shot run with --select-on val: train it again with the validation classes added,
    for as many steps as were best. Only --data, --device, --out and --start may be given with it;
    --start is a run on the validation classes, too, if the run started from another."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps or xpu."""

    def __post_init__(self) -> None:
        choose_runtime(self.device, "fp32")  # Raises here, where errors are those of usage.


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `nsim train`, those of a first run first."""

    data: Path | None = None
    """Folder of the data sets; the default is data, or the run's own with --resume, --retrain."""
    out: Path | None = None
    """Run folder; the default is runs/RECIPE[-train+val]-seedSEED. A run is never overwritten."""
    recipe: Annotated[TrainingRecipe, tyro.conf.arg(name="")]
    """Settings."""
    start: Annotated[StartOptions, tyro.conf.arg(name="")] = StartOptions()
    """What it starts from, and where."""

    def __post_init__(self) -> None:
        scale_recipe(self.recipe, self.start.budget)  # Raises here, as above.
        require_text("data", f"{self.data}")


def train(args: Sequence[str]) -> int:
    """Train, resume or retrain, then print the results and the run folder."""
    keep_freed_memory()
    name, rest = named_recipe(args, RECIPES, "recipe")
    words = [word for arg in rest for word in arg.split("=", 1)]
    if "--retrain" in words:
        require_only(("--retrain", "--out", "--start", *BESIDE), name, rest)
    given = _initial_settings(name or DEFAULT, words)
    options = _parse_recipe(_at_steps(given.recipe, words), rest, given.budget)
    start = options.start
    if name and start.config:
        raise UsageError(f"{name} cannot be given with --config, which names its recipe")
    if start.resume is not None:
        require_only(("--resume", *BESIDE), name, rest)
        if session.open_run(start.resume).summary.exists() and distributed.is_first():
            print_line(f"{start.resume} is finished already.")
        run = session.resume(start.resume, data_root=options.data, device=start.device)
    elif start.retrain is not None:
        run = _retrain_run(start.retrain, options)
    else:
        run = _start_run(given, options)
    return _print_results(run)


class _Settings(NamedTuple):
    """The settings that a command line starts from."""

    name: str
    recipe: TrainingRecipe
    budget: float = 1.0
    data: str = DATA_ROOT
    scaled: bool = False
    """Whether the recipe's steps are scaled by its budget already."""


def _initial_settings(name: str, words: Sequence[str]) -> _Settings:
    """The named recipe, or the settings in a file, or those of the kind of a run to retrain."""
    if "--retrain" in words[:-1]:
        run = session.open_run(words[words.index("--retrain") + 1])
        return _Settings(run.name, type(run.recipe)())
    if "--config" not in words[:-1]:
        chosen = _in_variant(name, words)
        return _Settings(chosen, RECIPES[chosen])
    if "--budget" in words:
        raise UsageError("--budget cannot be given with --config, whose steps are at its budget")
    path = Path(words[words.index("--config") + 1])
    path = path / CONFIG if path.is_dir() else path
    try:
        config = read_json(path)
        command = config.get("command", Run.COMMAND)
        if (task := command_task(command)) is None:
            raise ValueError(f"its command {command!r} trains no runs")
        kind = task.RUN.RECIPE
        named = RECIPES.get(config["recipe"], kind())
        fields = recipe_to_json(named if type(named) is kind else kind()) | config["fields"]
        recipe = recipe_from_json(fields, kind)
        root = config.get("data_root", DATA_ROOT)
        return _Settings(config["recipe"], recipe, config.get("budget", 1.0), root, True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--config must name a run's settings, got {path}: {reason_of(error)}"
        ) from error


def _at_steps(recipe: TrainingRecipe, words: Sequence[str]) -> TrainingRecipe:
    """The recipe, its drops in proportion where the command line changes its steps alone."""
    at = words.index("--steps") + 1 if "--steps" in words[:-1] else 0
    if not (at and words[at].isdecimal() and int(words[at])) or "--drops" in words:
        return recipe
    steps = int(words[at])
    _, drops = scaled_steps(recipe.steps, recipe.drops, steps / recipe.steps)
    drops = tuple(drop for drop in drops if drop < steps)
    if drops != recipe.drops:
        print_notice(f"the learning rate drops at {drops or 'no step'}, in proportion (--drops)")
    return replace(recipe, steps=steps, drops=drops)


def _parse_recipe(recipe: TrainingRecipe, args: Sequence[str], budget: float = 1.0) -> TrainOptions:
    default = TrainOptions(recipe=recipe, start=StartOptions(budget=budget))
    text = task_of(recipe).HELP
    return parse_options(TrainOptions, args, prog="nsim train", description=text, default=default)


def _in_variant(name: str, words: Sequence[str]) -> str:
    """The recipe that a name and `--variant`, which stands for many fields, mean together."""
    if "--resume" in words or "--variant" not in words[:-1]:
        return name
    try:
        return in_variant(name, words[words.index("--variant") + 1])
    except ValueError as error:
        raise UsageError(str(error)) from error


def _start_run(given: _Settings, options: TrainOptions) -> Run:
    name = given.name
    recipe = options.recipe
    if name in STARTS and not getattr(recipe, recipe.START):
        option, start = f"--{recipe.START} RUN", STARTS[name]
        if recipe.START_REQUIRED:
            raise UsageError(f"{name} needs {option}, the folder of a run of {start}")
        print_notice(f"nsim: {name} expects {option} from {start}; training from scratch")
    return session.train(
        recipe,
        name=name,
        budget=options.start.budget,
        out=options.out,
        data_root=options.data or given.data,
        device=options.start.device,
        at_budget=given.scaled,
    )


def _retrain_run(path: Path, options: TrainOptions) -> Run:
    return session.retrain(
        session.open_run(path),
        out=options.out,
        data_root=options.data,
        device=options.start.device,
        start=getattr(options.recipe, options.recipe.START, None) or None,
    )


def _print_results(run: Run) -> int:
    """Print the results; 1 if the run has failed."""
    if not distributed.is_first():
        return 0
    task = task_of(run.recipe)
    with content_errors(run.summary):
        summary = read_facts(run.summary)
        print_line(task.result_text(run, summary))
        failure = task.failure(run, summary)
    if failure is not None:
        print_notice(f"nsim: {failure}")
    return int(failure is not None)

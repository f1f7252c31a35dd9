"""`nsim train`: a recipe of any kind into a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity.lab.cli.commands import say
from neural_similarity.lab.cli.parsing import named_recipe, parse, require_only
from neural_similarity.lab.errors import UsageError, content_errors
from neural_similarity.lab.recipes import RECIPES, STARTS, in_variant
from neural_similarity.lab.tasks import TASKS
from neural_similarity.lab.tasks.adaptation import ADAPTER, AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.train import Recipe, Run, distributed, read_run
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.progress import clock, notice
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json, scaled
from neural_similarity.lab.train.run import CONFIG, read_facts
from neural_similarity.lab.train.schedule import scaled_steps

DEFAULT, FEW_SHOT_DEFAULT, DATA_ROOT = "quickstart", "fewshot-quickstart", "data"
BESIDE = ("--data", "--device")
DESCRIPTION = """Train a network into a run folder: nsim train [RECIPE] [--field value ...]

examples:
  nsim train                                     the quick start
  nsim train cifar10-static-dns --data data --seed 1
  nsim train cifar10-cnn --budget 0.125 --validation 5000
  nsim train cifar10-dynamic-dns --variant released --data data
  nsim train imagenet-resnet18-dynamic-dns --data ILSVRC2012
  nsim train --similarity "Static(Diagonal())" --out runs/diagonal
  nsim train --config runs/quickstart-seed0 --seed 1
  nsim train --dataset folder --data photos      a folder of a folder for each class
  nsim train mini-cnn4 --help                    what few-shot recipes take
  nsim train --resume runs/quickstart-seed0      continue exactly"""
ADAPT_DESCRIPTION = """Adapt a pretrained network: nsim train adapt --backbone WORD --data FOLDER

examples:
  nsim train adapt --backbone timm:resnet18 --data flowers
  nsim train adapt --backbone torchvision:resnet50 --data flowers --train M+norm --where "layer4.*"
  nsim train adapt --backbone runs/cifar10-cnn-seed1 --data flowers --similarity static-diagonal
  nsim train adapt --backbone resnet20.safetensors --model resnet20 --data flowers --train all
  nsim train --resume runs/adapt-seed0      continue exactly"""
FEW_SHOT_DESCRIPTION = """Train for few-shot learning: nsim train [RECIPE] [--field value ...]

examples:
  nsim train fewshot-quickstart             about a minute
  nsim train mini-cnn4 --data data --seed 1
  nsim train --retrain runs/mini-cnn4-seed1 on validation classes too, see --retrain
  nsim train mini-meta-static --start runs/mini-cnn4-seed1
  nsim train --resume runs/mini-cnn4-seed1  continue exactly"""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `nsim train`."""

    budget: float = 1.0
    """Factor on steps and drops, each rounded to the nearest step."""
    data: Path | None = None
    """Folder of the data sets; the default is data, or the run's own with --resume, --retrain."""
    config: Path | None = None
    """config.json of a run, or its folder: recipe, settings and budget to begin with."""
    out: Path | None = None
    """Run folder; the default is runs/RECIPE[-train+val]-seedSEED. None is ever overwritten."""
    resume: Path | None = None
    """Run folder to continue; of the other options only --data and --device may be given."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps or xpu."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    """Settings."""

    def __post_init__(self) -> None:
        scaled(self.recipe, self.budget)  # Raises here, where errors are those of usage.


@dataclass(frozen=True, kw_only=True)
class FewShotOptions(TrainOptions):
    """Options of `nsim train` with a few-shot recipe."""

    retrain: Path | None = None
    """Finished run with --select-on val, to train again on validation classes as well, for as
    many epochs as were best, or as many updates if by tasks; of the other options only --data,
    --device, --out and --start may be given, the latter for what starts from a run: one on
    validation classes as well."""
    recipe: Annotated[FewShotRecipe, tyro.conf.arg(name="")]
    """Settings."""


@dataclass(frozen=True, kw_only=True)
class AdaptOptions(TrainOptions):
    """Options of `nsim train` with a recipe that adapts a pretrained network."""

    recipe: Annotated[AdaptationRecipe, tyro.conf.arg(name="")]
    """Settings."""


def train(args: Sequence[str]) -> int:
    """Train, resume or retrain, then print the results and the run folder."""
    keep_freed_memory()
    name, rest = named_recipe(args, RECIPES, "recipe")
    words = [word for arg in rest for word in arg.split("=", 1)]
    if "--retrain" in words:
        return _retrain(name, rest)
    began = _began(name or DEFAULT, words)
    options = _parse(_at_steps(began.recipe, words), rest, began.budget)
    if name and options.config:
        raise UsageError(f"{name} cannot be given with --config, which names its recipe")
    if options.resume is not None:
        require_only(("--resume", *BESIDE), name, rest)
        if session.open_run(options.resume).summary.exists() and distributed.first():
            say(f"{options.resume} is finished already.")
        run = session.resume(options.resume, data_root=options.data, device=options.device)
    else:
        run = _start(began, options)
    _report(run)
    return 0


class _Began(NamedTuple):
    """The settings that a command line starts from."""

    name: str
    recipe: Recipe
    budget: float = 1.0
    data: str = DATA_ROOT
    scaled: bool = False
    """Whether the recipe's steps are scaled by its budget already."""


def _began(name: str, words: Sequence[str]) -> _Began:
    """The named recipe, or the settings in a file."""
    if "--config" not in words[:-1]:
        chosen = _in_variant(name, words)
        return _Began(chosen, RECIPES[chosen])
    if "--budget" in words:
        raise UsageError("--budget cannot be given with --config, whose steps are at its budget")
    path = Path(words[words.index("--config") + 1])
    path = path / CONFIG if path.is_dir() else path
    try:
        config = read_json(path)
        kinds = {task.RUN.COMMAND: task.RUN.RECIPE for task in TASKS}
        kind = kinds[config.get("command", Run.COMMAND)]
        named = RECIPES.get(config["recipe"], kind())
        fields = recipe_to_json(named if type(named) is kind else kind()) | config["fields"]
        recipe = recipe_from_json(fields, kind)
        root = config.get("data_root", DATA_ROOT)
        return _Began(config["recipe"], recipe, config.get("budget", 1.0), root, True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--config must hold a run's settings, got {path}: {error!r}") from error


def _at_steps(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe, its drops in proportion where the command line changes its steps alone."""
    at = words.index("--steps") + 1 if "--steps" in words[:-1] else 0
    if not (at and words[at].isdecimal() and int(words[at])) or "--drops" in words:
        return recipe
    steps = int(words[at])
    _, drops = scaled_steps(recipe.steps, recipe.drops, steps / recipe.steps)
    drops = tuple(drop for drop in drops if drop < steps)
    if drops != recipe.drops:
        notice(f"the learning rate drops at {drops or 'no step'}, in proportion (--drops)")
    return replace(recipe, steps=steps, drops=drops)


def _parse(recipe: Recipe, args: Sequence[str], budget: float = 1.0) -> TrainOptions:
    given: dict[str, Any] = {"recipe": recipe, "budget": budget}
    if isinstance(recipe, FewShotRecipe):
        default, text = FewShotOptions(**given), FEW_SHOT_DESCRIPTION
    elif isinstance(recipe, AdaptationRecipe):
        default, text = AdaptOptions(**given), ADAPT_DESCRIPTION
    else:
        default, text = TrainOptions(**given), DESCRIPTION
    return parse(type(default), args, prog="nsim train", description=text, default=default)


def _in_variant(name: str, words: Sequence[str]) -> str:
    """The recipe that a name and `--variant`, which stands for many fields, mean together."""
    few_shot = isinstance(RECIPES[name], FewShotRecipe)
    if few_shot or "--resume" in words or "--variant" not in words[:-1]:
        return name
    try:
        return in_variant(name, words[words.index("--variant") + 1])
    except ValueError as error:
        raise UsageError(str(error)) from error


def _start(began: _Began, options: TrainOptions) -> Run:
    name = began.name
    recipe = options.recipe
    if name in STARTS and isinstance(recipe, FewShotRecipe) and recipe.start is None:
        expected = f"expects --start RUN from {STARTS[name]}"
        notice(f"nsim: {name} {expected}; training from scratch")
    if name in STARTS and isinstance(recipe, AdaptationRecipe) and not recipe.backbone:
        raise UsageError(f"{name} needs --backbone RUN, the folder of a run of {STARTS[name]}")
    return session.train(
        recipe,
        name=name,
        budget=options.budget,
        out=options.out,
        data_root=options.data or began.data,
        device=options.device,
        at_budget=began.scaled,
    )


def _retrain(name: str | None, args: Sequence[str]) -> int:
    options = _parse(RECIPES[FEW_SHOT_DEFAULT], args)
    if not isinstance(options, FewShotOptions) or options.retrain is None:
        raise UsageError("--retrain needs a run folder")
    require_only(("--retrain", "--out", "--start", *BESIDE), name, args)
    run = session.retrain(
        read_run(options.retrain, FewShotRun),
        out=options.out,
        data_root=options.data,
        device=options.device,
        start=options.recipe.start,
    )
    _report(run)
    return 0


def _report(run: Run) -> None:
    if not distributed.first():
        return
    with content_errors(run.summary):
        say(_told(run, read_facts(run.summary)))


def _told(run: Run, summary: dict[str, Any]) -> str:
    """The results of a run, and its folder."""
    text = f"{summary['steps']:,} steps in {clock(summary['seconds'])}"
    best = summary.get("best_checkpoint")
    if isinstance(run, FewShotRun):
        if best:
            text += (
                f"; best on validation classes at step {best['step']:,}: "
                f"{100 * best['validation_accuracy']:.2f} %, batch norm by {best['batch_norm']} "
                "statistics"
            )
        return f"{text}\nrun folder {run.path}; nsim evaluate {run.path}"
    speed = f"{summary['images_per_second']:,.0f} images/s"
    text = f"test accuracy {100 * summary['test_accuracy']:.2f} % after {text} ({speed})\n"
    if best:
        text += f"best checkpoint on held-out images: {100 * best['test_accuracy']:.2f} %\n"
    if (run.path / ADAPTER).exists():
        file = f"{run.path / ADAPTER}, {summary['bytes'] / 1000:,.1f} kB"
        text += f"{summary['trained']:,} numbers trained, to be kept in {file}\n"
    return f"{text}run folder {run.path}, pictures in {run.plots}"

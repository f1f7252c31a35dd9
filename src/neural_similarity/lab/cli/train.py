"""`nsim train`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from neural_similarity.lab import train as training
from neural_similarity.lab.cli.commands import say
from neural_similarity.lab.cli.parsing import named_recipe, parse, require_only
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.recipes import RECIPES, in_variant
from neural_similarity.lab.train import Recipe, Run
from neural_similarity.lab.train.files import read_json
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.progress import clock
from neural_similarity.lab.train.recipe import scaled

DEFAULT, DATA_ROOT = "quickstart", "data"
WITH_RESUME = ("--resume", "--data", "--device")
DESCRIPTION = """Train a network into a run folder: nsim train [RECIPE] [--field value ...]

examples:
  nsim train                                     the quick start
  nsim train cifar10-static-dns --data data --seed 1
  nsim train cifar10-cnn --budget 0.125 --validation 5000
  nsim train cifar10-dynamic-dns --variant released --data data
  nsim train imagenet-resnet18-dynamic-dns --data ILSVRC2012
  nsim train --similarity "Static(Diagonal())" --out runs/diagonal
  nsim train mini-cnn4 --help                    what few-shot recipes take
  nsim train --resume runs/quickstart-seed0      continue exactly"""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `nsim train` takes."""

    budget: float = 1.0
    """Factor on steps and drops, each rounded to the nearest step."""
    data: Path | None = None
    """Folder of the data sets; the default is data, or the run's own with --resume."""
    out: Path | None = None
    """Run folder; the default is runs/RECIPE-seedSEED. An existing one is never overwritten."""
    resume: Path | None = None
    """Run folder to continue; of the other options only --data and --device may be given."""
    device: str = "auto"
    """auto, cpu or cuda."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    """Settings."""

    def __post_init__(self) -> None:
        scaled(self.recipe, self.budget)  # Raises here, where errors are those of usage.


def train(args: Sequence[str]) -> int:
    """Train or resume, then print the test accuracy and where everything is."""
    name, rest = named_recipe(args, RECIPES, "recipe")
    chosen = _in_variant(name or DEFAULT, rest)
    default = TrainOptions(recipe=RECIPES[chosen])
    options = parse(TrainOptions, rest, command="train", description=DESCRIPTION, default=default)
    keep_freed_memory()
    if options.resume is None:
        run = _start(chosen, options)
    else:
        require_only(WITH_RESUME, name, rest)
        run = _resume(options.resume, options)
    _report(run)
    return 0


def _in_variant(name: str, args: Sequence[str]) -> str:
    """The recipe that a name and `--variant`, which stands for many fields, mean together."""
    words = [word for arg in args for word in arg.split("=", 1)]
    if "--resume" in words or "--variant" not in words[:-1]:
        return name
    try:
        return in_variant(name, words[words.index("--variant") + 1])
    except ValueError as error:
        raise UsageError(str(error)) from error


def _start(name: str, options: TrainOptions) -> Run:
    return training.train(
        options.recipe,
        name=name,
        budget=options.budget,
        out=options.out,
        data_root=options.data or DATA_ROOT,
        device=options.device,
    )


def _resume(path: Path, options: TrainOptions) -> Run:
    if training.read_run(path).summary.exists():
        say(f"{path} is finished already.")
    return training.resume(path, data_root=options.data, device=options.device)


def _report(run: Run) -> None:
    summary = read_json(run.summary)
    text = (
        f"test accuracy {100 * summary['test_accuracy']:.2f} % after {summary['steps']:,} steps "
        f"in {clock(summary['seconds'])} ({summary['images_per_second']:,.0f} images/s)\n"
    )
    if best := summary.get("best_checkpoint"):
        text += f"best checkpoint on held-out images: {100 * best['test_accuracy']:.2f} %\n"
    say(f"{text}run folder {run.path}, pictures in {run.plots}")

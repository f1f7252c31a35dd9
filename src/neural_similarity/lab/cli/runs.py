"""`nsim evaluate`, `predict` and `inspect`: what one does with a finished run."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar, cast

import torch
import tyro
from torch import Tensor, nn

from neural_similarity.lab import session
from neural_similarity.lab import train as training
from neural_similarity.lab.cli.commands import print_line, say_json
from neural_similarity.lab.cli.parsing import parse_options
from neural_similarity.lab.data import Dataset
from neural_similarity.lab.data.decoding import read_centre, read_header, read_pixels
from neural_similarity.lab.data.deep import Depth
from neural_similarity.lab.data.listing import image_files, warn_of_pages
from neural_similarity.lab.data.transforms import join_pixels
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.tasks import TASK_KINDS, command_task, task_of
from neural_similarity.lab.tasks.classification import (
    PICTURED,
    ClassificationTask,
    draw_similarities,
)
from neural_similarity.lab.terminal import one_line
from neural_similarity.lab.train import Recipe, Run, RunError, Runtime, distributed
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.run import command_of, load_network
from neural_similarity.lab.train.runtime import SCORE_PRECISION
from neural_similarity.nn import is_dynamic

TOP = 3
IMAGES_AT_ONCE = 256
"""Images that are held in memory."""
ScoringOptions = TypeVar("ScoringOptions")


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Options of every command on a run."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps or xpu."""

    def __post_init__(self) -> None:
        training.choose_runtime(self.device, "fp32")  # Raises here, where errors are of usage.


@dataclass(frozen=True, kw_only=True)
class RunOptions(PlaceOptions):
    """Options of commands on a run's network."""

    checkpoint: Literal["last", "best"] = "last"
    """The last checkpoint, or the best on held-out images."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(RunOptions):
    """Options of commands on a run and its images."""

    data: Path | None = None
    """Folder of the data sets; the default is the one that the run was trained from."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(PlaceOptions, Generic[ScoringOptions]):
    """Options of `nsim evaluate`."""

    scoring: Annotated[ScoringOptions, tyro.conf.arg(name="")]
    """Options of such runs."""
    data: Path | None = None
    """Folder of the data sets; the default is the one that the run was trained from."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(RunOptions):
    """Options of `nsim predict`."""

    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGE...")]
    """Image files, in any format that Pillow reads, or folders of them."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions(DataOptions):
    """Options of `nsim inspect`."""

    out: Path | None = None
    """Folder of the pictures; the default is plots in the run folder."""
    images: tuple[Path, ...] = ()
    """Images to draw dynamic similarities on; the default is two training images."""


def evaluate(args: Sequence[str]) -> int:
    """Print what a run is scored on its test data."""
    keep_freed_memory()
    tasks = (command_task(command_of(Path(arg)) or "") for arg in args)
    task = next(filter(None, tasks), TASK_KINDS[0])
    kind = EvaluateOptions[task.SCORING]
    options = parse_options(
        kind, args, prog="nsim evaluate", description=task.SCORING_HELP, flags=True
    )
    run = session.open_run(options.run)
    loaded = session.load_task(run, options.data)
    facts, text = loaded.evaluate(run, options.scoring, options.device)
    if distributed.is_first():
        say_json({"run": str(run.path)} | facts) if options.json else print_line(text)
    return 0


def predict(args: Sequence[str]) -> int:
    """Print the likeliest classes of images."""
    description = (
        "Name the classes of images, which are resized and cropped to what the network was trained "
        "on. The exit code is 1 where one cannot be read; the others are named all the same."
        "\n\nexamples:\n  nsim predict runs/quickstart-seed0 shoe.png bag.png\n"
        "  nsim predict runs/quickstart-seed0 photos"
    )
    options = parse_options(PredictOptions, args, prog="nsim predict", description=description)
    if not options.images:
        raise UsageError("nsim predict needs at least one image")
    run = open_class_run(options.run)
    runtime, model = _load_with_runtime(run, options)
    model, failed = runtime.place_model(model), 0
    files = image_files(options.images)
    for start in range(0, len(files), IMAGES_AT_ONCE):
        paths = files[start : start + IMAGES_AT_ONCE]
        images = _readable_images(paths, run)
        failed += len(paths) - len(images)
        if images:
            pixels = join_pixels([*images.values()])
            logits = training.predict_logits(model, pixels, run.preprocess, runtime)
            for path, row in zip(images, logits.softmax(1), strict=True):
                print_line(f"{one_line(str(path))}: {_likeliest_classes(row, run.classes)}")
    return int(failed > 0)


def _readable_images(paths: Iterable[Path], run: Run) -> dict[Path, Tensor]:
    """The pixels of the images that can be read; the others are named on stderr."""
    images = {}
    for path in paths:
        try:
            images[path] = _read_image(path, run)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"nsim: {one_line(str(error))}\n")
    return images


def _likeliest_classes(chances: Tensor, classes: Sequence[str]) -> str:
    best = chances.topk(min(TOP, len(classes)))
    names = [one_line(classes[index]) for index in map(int, best.indices)]
    pairs = zip(names, best.values.tolist(), strict=True)
    return ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in pairs)


def inspect(args: Sequence[str]) -> int:
    """Draw the learned similarities and print the files."""
    description = (
        "Draw the similarities that a run learned, those of dynamic layers on a few images."
        "\n\nexamples:\n  nsim inspect runs/quickstart-seed0 --out pictures\n"
        "  nsim inspect runs/quickstart-seed0 --images shoe.png bag.png"
    )
    options = parse_options(InspectOptions, args, prog="nsim inspect", description=description)
    run = open_class_run(options.run)
    dataset = dataset_of(run, options)
    runtime, model = _load_with_runtime(run, options)
    pixels = dataset.train.head(PICTURED)
    if options.images:
        pixels = join_pixels([_read_image(path, run) for path in options.images])
    paths = draw_similarities(run, runtime.place_model(model), pixels, options.out or run.plots)
    for path in paths:
        print_line(str(path))
    if not paths:
        print_line(f"{run.path} has no similarity to draw: its layers are plain convolutions")
    return 0


def open_class_run(path: Path) -> Run:
    """A run whose network names the classes of images.

    Raises:
        RunError: it is of another kind, or the folder is no run's.
    """
    run = session.open_run(path)
    if not task_of(run.recipe).NAMES_CLASSES:
        raise RunError(
            f"{path} is a few-shot run, whose network names no classes; nsim evaluate it"
        )
    return run


def dataset_of(run: Run, options: DataOptions) -> Dataset:
    """The data set that a run was trained on."""
    return cast(ClassificationTask, session.load_task(run, options.data)).dataset


def _load_with_runtime(run: Run, options: RunOptions) -> tuple[Runtime, nn.Module]:
    """The runtime, and the run's network, which is not placed on its device yet."""
    runtime = training.choose_runtime(options.device, SCORE_PRECISION, run.recipe.channels_last)
    return runtime, load_network(run, options.checkpoint)


def require_foldable(run: Run, model: nn.Module) -> None:
    """Check that a network has no dynamic similarities."""
    if any(is_dynamic(module) for module in model.modules()):
        raise RunError(
            f"{run.path} has dynamic similarities, which cannot be folded: they differ from image "
            "to image, and kernels do not"
        )


def _read_image(path: Path, run: Run) -> Tensor:
    """Pixels (channels, height, width) as the run's network takes them."""
    if run.recipe.dataset == "imagenet":
        return torch.tensor(read_centre(path, run.image_size)).permute(2, 0, 1)
    header, size = read_header(path), (run.image_size, run.image_size)
    warn_of_pages([header])
    mode, draft = header.mode, cast(Recipe, run.recipe).draft
    if not isinstance(mode, Depth) and run.channels in (1, 3):
        mode = "L" if run.channels == 1 else "RGB"
    pixels = torch.tensor(read_pixels(path, mode, size, draft=draft))
    if len(pixels) not in (1, run.channels):
        raise ValueError(f"{path} must have {run.channels} channels, got {len(pixels)}")
    return pixels.expand(run.channels, -1, -1)

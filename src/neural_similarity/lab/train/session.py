"""A training run from its recipe to its summary, and its continuation."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity import visualize
from neural_similarity.lab import data
from neural_similarity.lab.data import (
    Augment,
    Batches,
    Dataset,
    FileBatches,
    ImageFiles,
    ImageSet,
    Preprocess,
)
from neural_similarity.lab.train.checkpoint import State, checkpoints, newest, restore
from neural_similarity.lab.train.environment import command_line, describe_environment, device_name
from neural_similarity.lab.train.files import locked, read_json, write_json
from neural_similarity.lab.train.journal import Journal, cut_back, read_lines
from neural_similarity.lab.train.loop import Job, Judge, fit
from neural_similarity.lab.train.objective import Classification, Objective
from neural_similarity.lab.train.plots import draw_learning_curves
from neural_similarity.lab.train.progress import show
from neural_similarity.lab.train.recipe import Recipe, scaled
from neural_similarity.lab.train.run import (
    CONFIG,
    ENVIRONMENT,
    Run,
    create_run,
    load,
    read_run,
    removed_if_nothing_began,
    require_new,
    require_same_data,
)
from neural_similarity.lab.train.runtime import Runtime, choose_runtime, threads
from neural_similarity.lab.train.scoring import Scores, evaluate, pack_correct
from neural_similarity.lab.train.stopping import signals_noted
from neural_similarity.models import parameters
from neural_similarity.regularize import parameter_groups

PICTURED = 2
KEPT = ("commit", "torch", "threads", "device", "precision")
"""Facts of the process that began a run which those that continue it should share."""
log = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    *,
    name: str = "custom",
    budget: float = 1.0,
    out: str | Path | None = None,
    data_root: str | Path = "data",
    device: str = "auto",
) -> Run:
    """Train `recipe` into a new run folder and score the test set once, at the end.

    Args:
        recipe: every setting.
        name: name of the recipe in the run folder.
        budget: factor on steps and drops.
        out: the run folder; None is `runs/<name>-seed<seed>`.
        data_root: folder of the data sets.
        device: "auto", "cpu" or "cuda".

    Returns:
        The finished run.

    Raises:
        RunError: the folder is there already, or cannot be written.
        FileNotFoundError: the data set is missing.
        ValueError: the budget is not positive, there is no such device, or the data do not suit the
            recipe.
        Interrupted: SIGINT or SIGTERM came; the step is finished and saved, and `resume` goes on.
    """
    recipe = scaled(recipe, budget)
    runtime = choose_runtime(device, recipe.precision, recipe.channels_last, recipe.threads)
    path = Path(out) if out is not None else Path("runs") / f"{name}-seed{recipe.seed}"
    require_new(path)
    dataset = _load(recipe, data_root)
    channels, image_size = _checked_sizes(dataset)
    run = Run(
        path=path,
        name=name,
        budget=budget,
        recipe=recipe,
        data_root=str(Path(data_root).absolute()),
        digest=dataset.digest,
        classes=tuple(dataset.train.classes),
        channels=channels,
        image_size=image_size,
        preprocess=Preprocess.of(split(dataset, recipe)[0], recipe.inputs),
    )
    with threads(recipe.threads):
        create_run(run, describe_environment(runtime))
        with removed_if_nothing_began(run):
            _complete(run, dataset, runtime)
    return run


def _checked_sizes(dataset: Dataset) -> tuple[int, int]:
    """Channels and height of a data set's images, if a network can learn to tell them apart."""
    channels, height, width = dataset.train.shape
    if height != width:
        raise ValueError(
            f"images must be square, or `image_size` be given to cut them, got {height}x{width}"
        )
    if len(dataset.train.classes) < 2:
        raise ValueError(f"there must be two classes at least, got {dataset.train.classes}")
    return channels, height


def resume(path: str | Path, *, data_root: str | Path | None = None, device: str = "auto") -> Run:
    """Continue the run in the folder `path` exactly from its newest whole checkpoint.

    A finished run is left as it is. With the same number of threads the weights on the CPU end
    bit for bit as those of a run that was never stopped.

    Args:
        path: the run folder.
        data_root: folder of the data sets; None is the one that the run began with.
        device: "auto", "cpu" or "cuda".

    Raises:
        RunError: the folder is no run's, another process trains it, or the data have changed.
        FileNotFoundError: the data set is missing.
        ValueError: there is no such device.
        Interrupted: as in `train`.
    """
    run = read_run(path)
    if run.summary.exists():
        return run
    runtime = choose_runtime(device, run.precision, run.recipe.channels_last)
    with threads(run.recipe.threads):
        _complete(run, load_data(run, data_root), runtime)
    return run


def load_data(run: Run, data_root: str | Path | None = None) -> Dataset:
    """The data set of a run, which must not have changed since.

    Raises:
        RunError: it has.
        FileNotFoundError: it is missing.
    """
    root = run.data_root if data_root is None else data_root
    dataset = _load(run.recipe, root)
    require_same_data(run, dataset.digest, root)
    return dataset


def _load(recipe: Recipe, root: str | Path) -> Dataset:
    return data.load(
        recipe.dataset, root=root, image_size=recipe.image_size, workers=recipe.workers
    )


def _complete(run: Run, dataset: Dataset, runtime: Runtime) -> None:
    _finish(run, _trained(run, dataset, runtime), dataset, runtime)


def _trained(run: Run, dataset: Dataset, runtime: Runtime) -> State:
    """The state behind the last step; what made the batches is gone when it is returned."""
    training, validation = split(dataset, run.recipe)
    objective = Classification(run.recipe, runtime, batches_of(training, run, runtime))
    judge = None if validation is None else _judge_by(validation, run, runtime)
    return fit_run(run, runtime, objective, judge=judge)


def _judge_by(validation: ImageSet, run: Run, runtime: Runtime) -> Judge:
    """Gives loss and accuracy on the held-out images."""

    def judge(model: nn.Module) -> dict[str, float]:
        scores = evaluate(model, validation, run.preprocess, runtime)
        return {"validation_loss": scores.loss, "validation_accuracy": scores.accuracy}

    return judge


def fit_run(
    run: Run,
    runtime: Runtime,
    objective: Objective,
    model: nn.Module | None = None,
    *,
    judge: Judge | None = None,
) -> State:
    """Train `run` by `objective` from its newest checkpoint, or from the start, to its last step.

    Args:
        run: what to train.
        runtime: device and precision.
        objective: what is minimised.
        model: where to start from if there is no checkpoint; None is a fresh network.
        judge: what chooses the best checkpoint, if anything does.

    Returns:
        The state after the last step.

    Raises:
        RunError: another process trains the run.
    """
    job = Job(run.recipe, runtime, objective, judge)
    # Two processes would write the same files.
    with locked(run.path / CONFIG, f"another process trains {run.path} already"):
        state = start(run, runtime, model)
        if checkpoints(run.checkpoints):
            restore(newest(run.checkpoints), state)
        cut_back(run.metrics, state.step)
        if state.step:
            _note_resumption(run, state.step, runtime)
        with (
            show(_title(run, runtime), run.recipe.steps, state.step) as progress,
            signals_noted() as stop,
        ):
            fit(job, state, Journal(run, progress), stop)
    return state


def start(run: Run, runtime: Runtime, model: nn.Module | None = None) -> State:
    """The state before the first step: model and optimiser, functions of the recipe."""
    recipe = run.recipe
    model = runtime.place(run.build() if model is None else model)
    groups = parameter_groups(
        model,
        weight_decay=recipe.weight_decay,
        similarity_decay=recipe.similarity_decay,
        sphere_decay=0.0 if recipe.orthogonality else None,
    )
    optimizer = make_optimizer(recipe, groups)
    totals = torch.zeros(3, dtype=torch.float64, device=runtime.device)
    return State(model, optimizer, totals)


def make_optimizer(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The recipe's optimiser of some groups of parameters."""
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, lr=recipe.lr, betas=(recipe.momentum, 0.999))
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)


def split(dataset: Dataset, recipe: Recipe) -> tuple[ImageSet, ImageSet | None]:
    """The images to train on and those held out for choosing, both of the training set."""
    if not recipe.validation:
        return dataset.train, None
    return data.held_out(dataset.train, recipe.validation, recipe.seed)


def batches_of(images: ImageSet, run: Run, runtime: Runtime) -> Batches | FileBatches:
    """The batches of a run, functions of the recipe and the images."""
    recipe = run.recipe
    options: dict[str, Any] = {
        "preprocess": run.preprocess,
        "seed": recipe.seed,
        "device": runtime.device,
        "channels_last": runtime.channels_last,
    }
    if isinstance(images, ImageFiles):
        return FileBatches(images, recipe.batch_size, flip=recipe.flip, **options)
    augment = Augment(crop=recipe.crop, flip=recipe.flip, padding=recipe.padding)
    return Batches(images, recipe.batch_size, augment=augment, **options)


def _title(run: Run, runtime: Runtime) -> str:
    place = f"{device_name(runtime.device)} in {runtime.precision}"
    return f"{run.name} on {place}, {run.recipe.steps:,} steps, into {run.path}"


def _note_resumption(run: Run, step: int, runtime: Runtime) -> None:
    """Add this process to the record; with other code, threads or devices sums may differ."""
    record = read_json(run.path / ENVIRONMENT)
    now = describe_environment(runtime)
    changed = [key for key in KEPT if record.get(key) != now.get(key)]
    for key in changed:
        log.warning(
            "Warning: %s is %s and was %s when the run began; weights may differ from those of an "
            "uninterrupted run.",
            *(key, now.get(key), record.get(key)),
        )
    record.setdefault("resumed", []).append({"step": step} | now)
    write_json(run.path / ENVIRONMENT, record)


def _finish(run: Run, state: State, dataset: Dataset, runtime: Runtime) -> None:
    """Draw the pictures, score the test set once and write the summary, which ends the run."""
    draw_learning_curves(read_lines(run.metrics), run.plots / "learning-curves.png")
    draw_similarities(run, state.model, dataset.train.head(PICTURED), run.plots)
    images = run.recipe.steps * run.recipe.batch_size
    scores = _test_scores(evaluate(state.model, dataset.test, run.preprocess, runtime))
    summary = scores | {"images_per_second": images / state.seconds} | facts_of(state, runtime)
    if run.best.is_dir():
        model = runtime.place(load(run, "best"))
        scores = _test_scores(evaluate(model, dataset.test, run.preprocess, runtime))
        summary["best_checkpoint"] = {"validation_accuracy": state.best} | scores
    write_json(run.summary, summary)


def facts_of(state: State, runtime: Runtime) -> dict[str, Any]:
    """What every summary tells: steps, seconds, parameters, device, precision, command."""
    return {
        "steps": state.step,
        "seconds": state.seconds,
        "parameters": parameters(state.model),
        "device": device_name(runtime.device),
        "precision": runtime.precision,
        "command": command_line(),
    }


def _test_scores(scores: Scores) -> dict[str, Any]:
    top5 = scores.top5_error_percent
    return {
        "test_accuracy": scores.accuracy,
        "test_error_percent": scores.error_percent,
        **({} if top5 is None else {"test_top5_error_percent": top5}),
        "test_loss": scores.loss,
        "test_correct": pack_correct(scores.correct),
    }


def draw_similarities(run: Run, model: nn.Module, pixels: Tensor, folder: Path) -> list[Path]:
    """Draw the learned similarity of every layer, the dynamic ones on a few images.

    Args:
        run: gives the preprocessing.
        model: a trained network.
        pixels: the images, uint8.
        folder: where the PNG files go.
    """
    device = next(model.parameters()).device
    inputs = run.preprocess(pixels).to(device)
    return visualize.draw(model.eval(), inputs, folder)

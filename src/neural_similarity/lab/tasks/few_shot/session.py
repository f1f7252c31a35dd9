"""A few-shot run from its recipe to its summary, its continuation, and its evaluation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from neural_similarity.lab import data
from neural_similarity.lab.data import ClassSplit, Images, Preprocess
from neural_similarity.lab.data.files import Progress
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate
from neural_similarity.lab.tasks.few_shot.method import Method
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.objective import Episodes
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe, retraining
from neural_similarity.lab.tasks.few_shot.run import FewShotRun, as_network, usual_checkpoint
from neural_similarity.lab.tasks.few_shot.tasks import Sampler, TaskSizes, draw_tasks
from neural_similarity.lab.train import RunError, Runtime, choose_runtime, read_run
from neural_similarity.lab.train.checkpoint import (
    State,
    checkpoints,
    newest,
    step_of,
    weights_digest,
)
from neural_similarity.lab.train.environment import describe_environment
from neural_similarity.lab.train.files import read_json, write_json
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.loop import Judge
from neural_similarity.lab.train.objective import Classification, Objective
from neural_similarity.lab.train.plots import draw_learning_curves
from neural_similarity.lab.train.recipe import recipe_to_json, scaled
from neural_similarity.lab.train.run import (
    ENVIRONMENT,
    create_run,
    find_checkpoint,
    removed_if_nothing_began,
    require_new,
    require_same_data,
)
from neural_similarity.lab.train.runtime import threads
from neural_similarity.lab.train.session import batches_of, facts_of, fit_run

SELECTION_SEED = 1
"""Of the validation tasks; those with which one evaluates have 0 unless it is told otherwise."""


def train(
    recipe: FewShotRecipe,
    *,
    name: str = "custom",
    budget: float = 1.0,
    out: str | Path | None = None,
    data_root: str | Path = "data",
    device: str = "auto",
    progress: Progress | None = None,
) -> FewShotRun:
    """Train `recipe` into a new run folder; test classes are not looked at.

    Args:
        recipe: every setting.
        name: name of the recipe in the run folder.
        budget: factor on steps and drops.
        out: the run folder; None is `runs/<name>-seed<seed>`.
        data_root: folder of the data sets.
        device: "auto", "cpu" or "cuda".
        progress: told how many images are decoded, where that has to be done.

    Returns:
        The finished run.

    Raises:
        RunError: the folder is there already, or the recipe's `start` is missing, of other data, or
            trained on classes that this run must not know.
        ValueError: the data do not suffice for the recipe's tasks.
        FileNotFoundError: the data set is not there.
        Interrupted: a signal came; `resume` goes on.
    """
    options = {"name": name, "budget": budget, "out": out, "data_root": data_root}
    return _train(scaled(recipe, budget), {}, **options, device=device, progress=progress)


def _train(
    recipe: FewShotRecipe,
    origin: dict[str, Any],
    *,
    name: str,
    budget: float,
    out: str | Path | None,
    data_root: str | Path,
    device: str,
    progress: Progress | None = None,
) -> FewShotRun:
    """`train` for a recipe at its budget; `origin` goes into the record of the environment."""
    if recipe.start is not None:  # The run may go on in another working directory.
        recipe = replace(recipe, start=str(Path(recipe.start).absolute()))
    runtime = choose_runtime(device, recipe.precision, recipe.channels_last, recipe.threads)
    path = Path(out) if out is not None else default_path(name, recipe)
    require_new(path, FewShotRun.COMMAND)
    split = data.load_split(
        recipe.dataset, data_root, image_size=recipe.image_size, progress=progress
    )
    images = split.part(recipe.train_on)
    check_sizes(split, recipe)
    start = check_start(recipe, split)
    channels, size = images.pixels.shape[1:3]
    run = FewShotRun(
        path=path,
        name=name,
        budget=budget,
        recipe=recipe,
        data_root=str(Path(data_root).absolute()),
        digest=split.digest,
        classes=images.classes,
        channels=channels,
        image_size=size,
        preprocess=_preprocess(recipe, images),
    )
    with threads(recipe.threads):
        create_run(run, describe_environment(runtime) | {"start": start} | origin)
        with removed_if_nothing_began(run):
            _complete(run, split, images, runtime)
    return run


def resume(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> FewShotRun:
    """Continue the run in the folder `path` exactly from its newest whole checkpoint.

    A finished run is left as it is.

    Args:
        path: the run folder.
        data_root: folder of the data sets; None is the one that the run began with.
        device: "auto", "cpu" or "cuda".
        progress: told how many images are decoded, where that has to be done.

    Raises:
        RunError: the folder is no run, or the data have changed since.
        FileNotFoundError: the data set is not there.
        Interrupted: a signal came; another call goes on.
    """
    run = read_run(path, FewShotRun)
    if run.summary.exists():
        return run
    runtime = choose_runtime(device, run.precision, run.recipe.channels_last)
    split = load_data(run, data_root, progress)
    with threads(run.recipe.threads):
        _complete(run, split, split.part(run.recipe.train_on), runtime)
    return run


def retrain(
    run: FewShotRun,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str = "auto",
    start: str | Path | None = None,
    progress: Progress | None = None,
) -> FewShotRun:
    """Train a run's recipe anew on validation classes as well, for as many epochs as were best.

    By tasks it is as many updates, see `retraining`.

    Args:
        run: finished, with a step chosen on the validation classes (`select_on`).
        out: the new run folder; None is the default one.
        data_root: folder of the data sets; None is the one that the run was trained from.
        device: "auto", "cpu" or "cuda".
        start: run folder to start from, trained on validation classes as well, where the run has
            one.
        progress: told how many images are decoded, where that has to be done.

    Raises:
        RunError: the run is not finished or chose no step, or started from another and `start` is
            not given or not trained on validation classes, or what `train` raises it for.
        FileNotFoundError: the data set is not there.
        Interrupted: a signal came; `resume` goes on.
    """
    summary = read_json(run.summary) if run.summary.exists() else {}
    if "best_checkpoint" not in summary:
        raise RunError(f"{run.path} must be finished and have chosen a step (--select-on val)")
    if run.recipe.start is not None:
        _require_all_classes(start, f"as {run.path} started from {run.recipe.start}")
    split = load_data(run, data_root, progress)
    growth = 1 + len(split.val) / len(split.train)
    chosen = {"step": summary["best_checkpoint"]["step"], "growth": growth}
    recipe = retraining(run.recipe, **chosen)
    return _train(
        replace(recipe, start=None if start is None else str(start)),
        {"retrained": chosen},
        name=run.name,
        budget=run.budget,
        out=out,
        data_root=run.data_root if data_root is None else data_root,
        device=device,
    )


def _require_all_classes(start: str | Path | None, why: str) -> None:
    classes = None if start is None else read_run(start, FewShotRun).recipe.train_on
    if classes != "train+val":
        got = "none" if start is None else f"{start}, trained on {classes}"
        raise RunError(f"`start` must be the folder of a run on train+val, {why}, got {got}")


def default_path(name: str, recipe: FewShotRecipe) -> Path:
    """Where a run goes if it is not told: `runs/<name>[-train+val]-seed<seed>`."""
    classes = "" if recipe.train_on == "train" else f"-{recipe.train_on}"
    return Path("runs") / f"{name}{classes}-seed{recipe.seed}"


def load_data(
    run: FewShotRun, data_root: str | Path | None = None, progress: Progress | None = None
) -> ClassSplit:
    """The data set of a run.

    Raises:
        RunError: it is not what the run was trained on.
        FileNotFoundError: it is not there.
    """
    root = run.data_root if data_root is None else data_root
    recipe = run.recipe
    split = data.load_split(recipe.dataset, root, image_size=recipe.image_size, progress=progress)
    require_same_data(run, split.digest, root)
    return split


def check_sizes(split: ClassSplit, recipe: FewShotRecipe) -> None:
    """Refuse a recipe whose tasks the data cannot give, before anything is trained.

    Raises:
        ValueError: a part has too few classes, or a class of it, which the error names, too few
            images for shots and queries; of test classes there must be two, or as many as in
            training where the method learns how its classifier starts.
    """
    if METHODS[recipe.method].episodic:
        check_tasks(split, recipe.train_on, recipe.sizes)
    if recipe.select_on == "val":
        if recipe.select_ways > len(split.val.classes):
            raise ValueError(
                f"`select_ways` must be at most the number of validation classes, "
                f"{len(split.val.classes)}, got {recipe.select_ways}"
            )
        check_tasks(split, "val", recipe.select_sizes)
    ways = recipe.ways if METHODS[recipe.method].fixed_ways else 2
    check_tasks(split, "test", replace(recipe.sizes, ways=ways))


def check_tasks(split: ClassSplit, part: str, sizes: TaskSizes) -> None:
    """Refuse sizes of tasks that a part of the data cannot give.

    Raises:
        ValueError: it has too few classes, or one, which the error names, too few images.
    """
    try:
        Sampler(split.part(part), sizes)
    except ValueError as error:
        raise ValueError(f"{split.name}, {part}: {error}") from None


def check_start(recipe: FewShotRecipe, split: ClassSplit) -> dict[str, Any] | None:
    """Facts of the run that training starts from, which must suit this one.

    Raises:
        RunError: there is none where kernels stay as they are, or it is of other data, or trained
            on classes that this run must not know.
    """
    if recipe.start is None:
        if METHODS[recipe.method].frozen:
            raise RunError(
                f"`start` must be the folder of a run: {recipe.method} leaves kernels as they are, "
                "got none"
            )
        return None
    run = read_run(recipe.start, FewShotRun)
    if not run.summary.exists():
        raise RunError(f"`start` must be a finished run, got {run.path}; --resume it first")
    if run.digest != split.digest:
        raise RunError(
            f"`start` must be a run on the same data, whose digest is {split.digest}, got "
            f"{run.path} with {run.digest}"
        )
    if run.recipe.train_on != "train" and recipe.train_on == "train":
        raise RunError(
            f"`start` must be trained on training classes alone, as this run, got {run.path}, "
            f"trained on {run.recipe.train_on}"
        )
    return {
        "recipe": run.name,
        "seed": run.recipe.seed,
        "classes": run.recipe.train_on,
        "budget": run.budget,
        "weights": weights_digest(find_checkpoint(run, usual_checkpoint(run))),
        "config": recipe_to_json(run.recipe),
        "retrained": read_json(run.path / ENVIRONMENT).get("retrained"),
    }


def _preprocess(recipe: FewShotRecipe, images: Images) -> Preprocess:
    if recipe.start is not None:
        return read_run(recipe.start, FewShotRun).preprocess
    return Preprocess.of(images, recipe.inputs)


def _complete(run: FewShotRun, split: ClassSplit, images: Images, runtime: Runtime) -> None:
    objective = _objective(run, images, runtime)
    judge = _judge_by(split, run, runtime) if run.recipe.select_on == "val" else None
    model = run.build() if checkpoints(run.checkpoints) else run.begin()
    state = fit_run(run, runtime, objective, model, judge=judge)
    _finish(run, state, images, runtime)


def _objective(run: FewShotRun, images: Images, runtime: Runtime) -> Objective:
    if METHODS[run.recipe.method].episodic:
        return Episodes(run.recipe, images, run.preprocess, runtime)
    return Classification(run.recipe, runtime, batches_of(images, run, runtime))


def _judge_by(split: ClassSplit, run: FewShotRun, runtime: Runtime) -> Judge:
    """Gives the mean accuracy over tasks of the validation classes."""
    recipe = run.recipe
    tasks = draw_tasks(
        split.val,
        recipe.select_sizes,
        recipe.select_tasks,
        seed=SELECTION_SEED,
        data=split.digest,
        part="val",
    )
    queries = len(tasks.sizes.query_labels)

    def judge(model: nn.Module) -> dict[str, Any]:
        method = _as_method(model, recipe)
        correct = evaluate(method, split.val, tasks, preprocess=run.preprocess, runtime=runtime)
        accuracy = correct.double().mean().item() / queries
        return {"validation_accuracy": accuracy, "batch_norm": METHODS[recipe.method].statistics}

    return judge


def _as_method(model: nn.Module, recipe: FewShotRecipe) -> Method:
    if isinstance(model, Method):
        return model
    return METHODS[recipe.method].build(as_network(model), recipe.select_sizes)


def _finish(run: FewShotRun, state: State, images: Images, runtime: Runtime) -> None:
    """Draw the learning curves and write the summary, which ends the run."""
    draw_learning_curves(read_lines(run.metrics), run.plots / "learning-curves.png")
    summary = {"images": len(images)} | facts_of(state, runtime)
    if run.best.is_dir():
        step = step_of(newest(run.best))
        summary["best_checkpoint"] = {
            "step": step,
            "validation_accuracy": state.best,
            "batch_norm": METHODS[run.recipe.method].statistics,
        }
    write_json(run.summary, summary)

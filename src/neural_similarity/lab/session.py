"""Train, resume, retrain and load runs of every kind."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from neural_similarity.choices import require_text
from neural_similarity.lab.data import require_folder
from neural_similarity.lab.tasks import command_task, task_of
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.environment import describe_environment
from neural_similarity.lab.train.fitting import complete_run
from neural_similarity.lab.train.journal import import_tracker
from neural_similarity.lab.train.peers import report_dead_processes
from neural_similarity.lab.train.progress import count_bar
from neural_similarity.lab.train.recipe import TrainingRecipe, recipe_to_json, scale_recipe
from neural_similarity.lab.train.run import (
    Run,
    command_of,
    create_run,
    load_network,
    read_run,
    remove_folder_if_start_fails,
    require_new,
    require_same_data,
)
from neural_similarity.lab.train.runtime import (
    Runtime,
    choose_runtime,
    cpu_threads,
    tuned_convolutions,
)
from neural_similarity.lab.train.task import Task


@dataclass(frozen=True)
class _Place:
    """Name, budget, folder, data and device of a run."""

    name: str
    budget: float
    out: str | Path | None
    data_root: str | Path
    device: str


def train(
    recipe: TrainingRecipe,
    *,
    name: str = "custom",
    budget: float = 1.0,
    out: str | Path | None = None,
    data_root: str | Path = "data",
    device: str = "auto",
    at_budget: bool = False,
) -> Run:
    """Train `recipe` into a new run folder, and score the network once, at the end.

    Args:
        recipe: every setting; its class says which kind of run it is.
        name: name of the recipe in the run folder.
        budget: factor on steps and drops.
        out: the run folder; None is `runs/<name>-seed<seed>`.
        data_root: folder of the data sets.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" or "xpu".
        at_budget: whether steps and drops are already scaled by the budget, as in a run's config.

    Returns:
        The finished run. Few-shot runs are not scored on test classes.

    Raises:
        RunError: the folder exists already or cannot be written, or the recipe's `start` is
            missing, has other data, or was trained on classes that this run must not see.
        FileNotFoundError: the data set is missing.
        ValueError: the budget is not positive, there is no such device, or the data do not suit the
            recipe.
        Interrupted: a signal of `stopping.SIGNALS` came; the step is finished and saved, and
            `resume` continues.
    """
    recipe = recipe if at_budget else scale_recipe(recipe, budget)
    return _begin_run(recipe, _Place(name, budget, out, data_root, device))


def resume(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str = "auto",
) -> Run:
    """Continue the run in the folder `path` exactly from its newest whole checkpoint.

    A finished run is left as it is. On the CPU, with the same number of threads, the final weights
    equal those of an uninterrupted run bit for bit. Without `data_root`, the data sets are in the
    folder that the run began with; devices are those of `train`.

    Raises:
        RunError: it is not a run folder, another process trains it, or the data have changed.
        FileNotFoundError: the data set is missing.
        ValueError: there is no such device.
        Interrupted: as in `train`.
    """
    run = open_run(path)
    if run.summary.exists():
        return run
    _require_equal_shares(run.recipe)
    runtime = choose_runtime(device, run.precision, run.recipe.channels_last)
    distributed.join_processes(runtime.device)
    with report_dead_processes(run.path), cpu_threads(run.recipe.threads), tuned_convolutions():
        complete_run(run, load_task(run, data_root), runtime)
    return run


def retrain(
    run: Run,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str = "auto",
    start: str | Path | None = None,
) -> Run:
    """Train a few-shot run's recipe again, with the validation classes, as long as was best.

    It trains for as many epochs as the best checkpoint, or as many updates if it trains by tasks.
    `start` is the folder of a run that was itself trained on the validation classes; it is required
    if the run started from another one. The other arguments are as in `train` and `resume`.

    Raises:
        RunError: the run is not finished or chose no step; or it started from another run, and
            `start` is missing or not trained on validation classes; or as in `train`.
        FileNotFoundError: the data set is not there.
        Interrupted: a signal came; `resume` continues.
    """
    task = task_of(run.recipe)
    recipe, chosen = task.retrained_recipe(run, start, lambda: load_task(run, data_root))
    root = run.data_root if data_root is None else data_root
    place = _Place(run.name, run.budget, out, root, device)
    return _begin_run(recipe, place, {"retrained": chosen})


def open_run(path: str | Path) -> Run:
    """The run in a folder, of any kind; `RunError` if there is none that can be read."""
    task = command_task(command_of(Path(path)) or "")
    return read_run(path, task.RUN if task else Run)


def load(
    run: str | Path | Run,
    checkpoint: Literal["last", "best"] = "last",
    device: str | torch.device = "cpu",
) -> nn.Module:
    """Load the network that a run trained, in evaluation mode; torch's random state is unchanged.

    Args:
        run: a run folder.
        checkpoint: "last", or "best" on held-out data if the run held any out.
        device: where the network goes.

    Returns:
        The trained network, in evaluation mode.

    Raises:
        RunError: there is no run, or no such checkpoint, in the folder.
        ValueError: `checkpoint` is neither of the two.
    """
    return load_network(run if isinstance(run, Run) else open_run(run), checkpoint, device)


def load_task(run: Run, data_root: str | Path | None = None) -> Task[Any, Any]:
    """The task of a run; data that are missing or differ from the run's are an error."""
    root = run.data_root if data_root is None else data_root
    task = _load_task(run.recipe, root)
    require_same_data(run, task.digest, root)
    return task


def _load_task(recipe: TrainingRecipe, root: str | Path) -> Task[Any, Any]:
    with count_bar("images decoded") as decoded:
        return task_of(recipe).load(recipe, root, decoded)


def _begin_run(recipe: TrainingRecipe, place: _Place, origin: dict[str, Any] | None = None) -> Run:
    """`train` a recipe that is scaled already; `origin` is recorded in environment.json."""
    _require_equal_shares(recipe)
    _check_settings(recipe, place.data_root)
    kind = task_of(recipe).RUN
    runtime = choose_runtime(place.device, recipe.precision, recipe.channels_last, recipe.threads)
    path = Path("runs") / recipe.folder_name(place.name) if place.out is None else Path(place.out)
    goes_on = distributed.was_restarted() and command_of(path) == kind.COMMAND
    if not goes_on:
        require_new(path, kind.COMMAND)  # before the data are read
    distributed.join_processes(runtime.device)
    with report_dead_processes(path), cpu_threads(recipe.threads), tuned_convolutions():
        if not goes_on:
            task_of(recipe).check_recipe(recipe)
        task = _load_task(recipe, place.data_root)
        if goes_on and open_run(path).recipe == task.recipe:
            return resume(path, data_root=place.data_root, device=place.device)
        return _begin_together(task, place, path, runtime, origin)


def _require_equal_shares(recipe: TrainingRecipe) -> None:
    """Check, before anything begins, that processes can share every update equally."""
    processes, field = distributed.launched_processes(), recipe.shared_field
    if getattr(recipe, field) % processes:
        raise ValueError(
            f"`{field}` must be a multiple of {processes}, the number of processes, got "
            f"{getattr(recipe, field)}"
        )


def _check_settings(recipe: TrainingRecipe, data_root: str | Path) -> None:
    """Check texts, data folder and tracker before data are read; config.json holds UTF-8 alone."""
    settings = recipe_to_json(recipe) | {"data_root": str(Path(data_root).absolute())}
    for name, value in settings.items():
        if isinstance(value, str):
            require_text(name, value)
    require_folder(recipe.dataset, Path(data_root))
    import_tracker(recipe.track)


def _begin_together(
    task: Task[Any, Any],
    place: _Place,
    path: Path,
    runtime: Runtime,
    origin: dict[str, Any] | None,
) -> Run:
    require_new(path, task.RUN.COMMAND)
    facts = task.check_start() | (origin or {})
    run = task.new_run(path, place.name, place.budget, place.data_root)
    distributed.by_first(lambda: create_run(run, describe_environment(runtime) | facts))
    removed = remove_folder_if_start_fails(run) if distributed.is_first() else nullcontext()
    with removed, report_dead_processes(run.path):
        complete_run(run, task, runtime)
    return run

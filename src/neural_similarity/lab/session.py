"""Train, resume, retrain and load runs of every kind."""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from neural_similarity.choices import require_text
from neural_similarity.files import write_json
from neural_similarity.lab.data import require_folder
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.tasks import command_task, task_of
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.checkpoint import (
    TrainingState,
    list_checkpoints,
    newest_checkpoint,
    restore_state,
)
from neural_similarity.lab.train.environment import (
    command_line,
    describe_environment,
    device_name,
    fallback_reason,
)
from neural_similarity.lab.train.files import hold_lock
from neural_similarity.lab.train.journal import (
    Journal,
    cut_back,
    draw_learning_curves,
    import_tracker,
    read_lines,
    tidy_checkpoints,
)
from neural_similarity.lab.train.loop import Job, fit_model
from neural_similarity.lab.train.peers import deaths_named
from neural_similarity.lab.train.progress import Progress, count_bar, show_progress
from neural_similarity.lab.train.recipe import TrainingRecipe, recipe_to_json, scale_recipe
from neural_similarity.lab.train.run import (
    CONFIG,
    ENVIRONMENT,
    Run,
    command_of,
    create_run,
    load_network,
    read_facts,
    read_run,
    removed_if_nothing_began,
    require_new,
    require_same_data,
)
from neural_similarity.lab.train.runtime import (
    Runtime,
    choose_runtime,
    cpu_threads,
    tuned_convolutions,
)
from neural_similarity.lab.train.stopping import signals_noted
from neural_similarity.lab.train.task import Task
from neural_similarity.models import parameters
from neural_similarity.nn import is_dynamic
from neural_similarity.regularize import parameter_groups

KEPT = ("commit", "torch", "threads", "processes", "device", "precision")
"""Facts about the process that began a run; processes that continue it should share them."""
log = logging.getLogger(__name__)


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
    with deaths_named(run.path), cpu_threads(run.recipe.threads), tuned_convolutions():
        _complete_run(run, load_task(run, data_root), runtime)
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
    """The network that a run trained, in evaluation mode; torch's random numbers stay as they are.

    Args:
        run: a run folder.
        checkpoint: "last", or "best" on held-out data if the run held any out.
        device: where the network goes.

    Raises:
        RunError: there is no run, or no such checkpoint, in the folder.
        ValueError: `checkpoint` is neither of the two.
    """
    return load_network(run if isinstance(run, Run) else open_run(run), checkpoint, device)


def load_task(run: Run, data_root: str | Path | None = None) -> Task[Any, Any]:
    """The task of a run; missing data, or others than the run's, are an error."""
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
    with deaths_named(path), cpu_threads(recipe.threads), tuned_convolutions():
        if not goes_on:
            task_of(recipe).check_recipe(recipe)
        task = _load_task(recipe, place.data_root)
        if goes_on and open_run(path).recipe == task.recipe:
            return resume(path, data_root=place.data_root, device=place.device)
        return _begin_together(task, place, path, runtime, origin)


def _require_equal_shares(recipe: TrainingRecipe) -> None:
    """Check, before anything begins, that processes can share every update equally."""
    processes, field = distributed.launched(), recipe.shared_field
    if getattr(recipe, field) % processes:
        raise ValueError(
            f"`{field}` must be a multiple of {processes}, the number of processes, got "
            f"{getattr(recipe, field)}"
        )


def _check_settings(recipe: TrainingRecipe, data_root: str | Path) -> None:
    """Check, before data are read, that config.json can hold what is given, and what is there."""
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
    removed = removed_if_nothing_began(run) if distributed.is_first() else nullcontext()
    with removed, deaths_named(run.path):
        _complete_run(run, task, runtime)
    return run


def _complete_run(run: Run, task: Task[Any, Any], runtime: Runtime) -> None:
    """Train `run` to its last step and write the summary, which ends it."""
    state = _train_steps(run, task, runtime)
    distributed.agree_on_buffers(state.model)
    scoring = runtime.for_scores()
    summary = task.finish_run(run, state, scoring) | _state_facts(state, runtime)
    summary["score_precision"] = scoring.precision
    if run.best.is_dir():
        summary["best_checkpoint"] = task.best_summary(run, state, scoring)
    if distributed.is_first():
        with content_errors(run.metrics):
            curves = run.plots / "learning-curves.png"
            draw_learning_curves(read_lines(run.metrics), curves, summary)
        write_json(run.summary, summary)
    distributed.wait_for_all()


def _train_steps(run: Run, task: Task[Any, Any], runtime: Runtime) -> TrainingState:
    """Train to the last step and return the state; the memory of batches is freed on return."""
    objective = task.objective(run, runtime)
    validate = task.validation(run, runtime.for_scores())
    with _written_by_one(run):
        state = initial_state(run, runtime)
        if list_checkpoints(run.checkpoints):
            restore_state(newest_checkpoint(run.checkpoints), state)
        if distributed.is_first():
            prepare_run_folder(run, state, runtime)
        with _show_progress(run, state, runtime) as progress, signals_noted() as stop:
            fit_model(
                Job(run.recipe, runtime, objective, validate), state, Journal(run, progress), stop
            )
    return state


def _written_by_one(run: Run) -> AbstractContextManager[object]:
    """Lock the run folder against other trainings, in the first process, which alone writes."""
    taken = f"another process trains {run.path} already"
    return hold_lock(run.path / CONFIG, taken) if distributed.is_first() else nullcontext()


def prepare_run_folder(run: Run, state: TrainingState, runtime: Runtime) -> None:
    """Prepare the run folder for training from `state`."""
    cut_back(run.metrics, state.step)
    tidy_checkpoints(run, state.step)
    if state.step:
        _note_resumption(run, state.step, runtime)
    if not any(map(is_dynamic, state.model.modules())):
        return
    reason = fallback_reason(runtime.device)
    write_json(run.path / ENVIRONMENT, read_facts(run.path / ENVIRONMENT) | {"fallback": reason})
    if reason:
        log.warning(
            "Warning: dynamic similarities run as torch's own operations, up to 2.2 times slower "
            "than they can: %s.",
            reason,
        )


def _show_progress(
    run: Run, state: TrainingState, runtime: Runtime
) -> AbstractContextManager[Progress]:
    if not distributed.is_first():
        return nullcontext(Progress())
    place = f"{device_name(runtime.device)} in {runtime.precision}"
    title = f"{run.name} on {place}, {run.recipe.steps:,} steps, into {run.path}"
    return show_progress(title, run.recipe.steps, state.step)


def initial_state(run: Run, runtime: Runtime) -> TrainingState:
    """The state before the first step: model and optimiser, functions of the recipe."""
    recipe = run.recipe
    model = runtime.place_model(
        run.build() if list_checkpoints(run.checkpoints) else run.begin_network()
    )
    if recipe.sync_norms:
        model = distributed.with_sync_norms(model)
    optimizer = make_optimizer(recipe, decay_groups(recipe, model))
    if distributed.process_rank():  # Else its dropout masks would equal the first's.
        torch.manual_seed(recipe.seed + distributed.process_rank())
    totals = torch.zeros(3, dtype=runtime.sum_dtype, device=runtime.device)
    return TrainingState(model, optimizer, totals)


def decay_groups(recipe: TrainingRecipe, model: nn.Module) -> list[dict[str, Any]]:
    """The parameters that train, in groups by their decay."""
    kernels_alone = recipe.decayed == "kernels"
    groups = parameter_groups(
        model,
        weight_decay=recipe.weight_decay,
        similarity_decay=recipe.similarity_decay,
        predictor_decay=0.0 if kernels_alone else None,
        sphere_decay=recipe.sphere_decay,
    )
    groups = recipe.rate_groups(model, groups)
    if not kernels_alone:
        return groups
    return [
        group | {"params": chosen, "weight_decay": decay}
        for group in groups
        for chosen, decay in (
            ([p for p in group["params"] if p.ndim > 1], group["weight_decay"]),
            ([p for p in group["params"] if p.ndim <= 1], 0.0),
        )
        if chosen
    ]


def make_optimizer(recipe: TrainingRecipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The recipe's optimiser of the groups, which may be empty."""
    groups = groups or [{"params": []}]
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, lr=recipe.lr, betas=(recipe.momentum, 0.999))
    options = {"lr": recipe.lr, "momentum": recipe.momentum, "nesterov": recipe.nesterov}
    return torch.optim.SGD(groups, **options)


def _note_resumption(run: Run, step: int, runtime: Runtime) -> None:
    """Record this process, and warn of what differs: other code, threads or devices change sums."""
    record = read_facts(run.path / ENVIRONMENT)
    now = describe_environment(runtime)
    changed = [key for key in KEPT if record.get(key) != now.get(key)]
    for key in changed:
        log.warning(
            "Warning: %s is %s and was %s when the run began; weights may differ from those of an "
            "uninterrupted run.",
            *(key, now.get(key), record.get(key)),
        )
    with content_errors(run.path / ENVIRONMENT):
        record.setdefault("resumed", []).append({"step": step} | now)
    write_json(run.path / ENVIRONMENT, record)


def _state_facts(state: TrainingState, runtime: Runtime) -> dict[str, Any]:
    """What every summary holds: steps, seconds, parameters, device, precision, command."""
    return {
        "steps": state.step,
        "seconds": state.seconds,
        "parameters": parameters(state.model),
        "device": device_name(runtime.device),
        "precision": runtime.precision,
        "command": command_line(),
    }

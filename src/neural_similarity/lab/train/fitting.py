"""A run's training, from its first or newest checkpoint to its summary."""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from neural_similarity.files import write_json
from neural_similarity.lab.errors import content_errors
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
    read_lines,
    tidy_checkpoints,
)
from neural_similarity.lab.train.loop import Job, fit_model
from neural_similarity.lab.train.progress import Progress, show_progress
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import (
    CONFIG,
    ENVIRONMENT,
    Run,
    read_facts,
)
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.lab.train.stopping import catch_signals
from neural_similarity.lab.train.task import Task
from neural_similarity.models import parameters
from neural_similarity.nn import is_dynamic
from neural_similarity.regularize import parameter_groups

SHARED_FACTS = ("commit", "torch", "threads", "processes", "device", "precision")
"""Facts about the process that began a run; processes that continue it should share them."""
log = logging.getLogger(__name__)


def complete_run(run: Run, task: Task[Any, Any], runtime: Runtime) -> None:
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
        with _show_progress(run, state, runtime) as progress, catch_signals() as stop:
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
    changed = [key for key in SHARED_FACTS if record.get(key) != now.get(key)]
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

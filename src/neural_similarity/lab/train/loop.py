"""The one training loop of the laboratory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from neural_similarity.lab.errors import Interrupted, RunError
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.graph import plain_update, repeated_update
from neural_similarity.lab.train.journal import Journal
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.lab.train.schedule import learning_rate, one_cycle

Validate = Callable[[nn.Module], dict[str, Any]]
"""Returns validation scores, "validation_accuracy" among them; keeps the network's modes."""


@dataclass(frozen=True)
class Job:
    """Everything that stays the same while training."""

    recipe: TrainingRecipe
    runtime: Runtime
    objective: Objective
    validate: Validate | None = None


def fit_model(
    job: Job, state: TrainingState, journal: Journal, stop: Callable[[], int | None] = lambda: None
) -> None:
    """Update `state` until the recipe's last step.

    Step `s` sees batch (or tasks) `s` at the learning rate of step `s`, so a state restored from a
    checkpoint goes on exactly as if training had never stopped. On a GPU the host replays one
    captured update where it can, see `graph`; several processes launch theirs directly. `stop` is
    called after every step; once it returns the number of a signal, a checkpoint is saved and
    `Interrupted` raised.
    """
    recipe = job.recipe
    network = job.objective.network(state.model)
    state.model.train()
    update = partial(update_once, job, state, network)
    alone = job.objective.on_device and distributed.process_count() == 1
    make = partial(repeated_update, device=job.runtime.device) if alone else plain_update
    advance = make(update, state.optimizer)
    mark = time.perf_counter()
    while state.step < recipe.steps:
        rate = step_rate(recipe, state.step)
        job.objective.prepare(state.step)
        advance(rate)
        state.step += 1
        journal.show_step(state.step)
        journal.show_metrics(state)

        signal, due = distributed.largest_of_all(stop() or 0, journal.checkpoint_is_due(state.step))
        last = state.step == recipe.steps
        logging = last or state.step % recipe.log_every == 0
        validate = job.validate if last or state.step % recipe.evaluate_every == 0 else None
        saving = bool(last or signal or due)
        if not (logging or validate or saving):
            continue
        job.runtime.synchronize()
        state.seconds += time.perf_counter() - mark
        distributed.collect_totals(state.totals)
        _require_finite_loss(state)
        if logging:
            journal.log_metrics(state, rate)
        if validate:
            distributed.agree_on_buffers(state.model)
            _choose_best(validate(state.model), state, journal)
        if saving:
            journal.save_state(state)
        if signal:
            raise Interrupted(signal, state.step, journal.run.path)
        mark = time.perf_counter()


def step_rate(recipe: TrainingRecipe, step: int) -> float:
    """The learning rate of an update."""
    if recipe.schedule == "one-cycle":
        return one_cycle(step, recipe.lr, recipe.steps)
    return learning_rate(step, recipe.lr, recipe.drops, recipe.drop_factor)


def update_once(job: Job, state: TrainingState, network: nn.Module) -> None:
    """One update on the prepared batch."""
    state.optimizer.zero_grad(set_to_none=True)
    tally = job.objective.differentiate(network)
    state.optimizer.step()
    state.totals += tally


def _require_finite_loss(state: TrainingState) -> None:
    if not state.totals[0].isfinite():
        raise RunError(f"the loss is not finite at step {state.step}; try a lower --lr")


def _choose_best(scores: dict[str, Any], state: TrainingState, journal: Journal) -> None:
    """Log the validation scores, and save the checkpoint if it is the best so far."""
    journal.log_validation(state, scores)
    if scores["validation_accuracy"] > state.best:
        state.best = scores["validation_accuracy"]
        journal.save_best(state)

"""The one training loop of the laboratory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from neural_similarity.lab.errors import Interrupted, RunError
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.graph import Plain, updates
from neural_similarity.lab.train.journal import Journal
from neural_similarity.lab.train.objective import Objective
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.lab.train.schedule import learning_rate

Judge = Callable[[nn.Module], dict[str, Any]]
"""What is held out says of a network: "validation_accuracy", and more; all modes stay."""


@dataclass(frozen=True)
class Job:
    """What stays the same while training."""

    recipe: Recipe
    runtime: Runtime
    objective: Objective
    judge: Judge | None = None


def fit(
    job: Job, state: State, journal: Journal, stop: Callable[[], int | None] = lambda: None
) -> None:
    """Update `state` until the recipe's last step.

    Step `s` sees batch (or tasks) `s` at the learning rate of step `s`, so a state restored from a
    checkpoint goes on exactly as if training had never stopped. On a GPU the host replays one
    captured update where it can, see `graph`.

    Args:
        job: recipe, device, what is minimised, and what chooses the best checkpoint, if anything.
        state: model, optimiser and position, changed in place.
        journal: where metrics and checkpoints go.
        stop: asked after every step; once it returns the number of a signal, a checkpoint is
            saved and `Interrupted` raised.
    """
    recipe = job.recipe
    network = cast(nn.Module, torch.compile(state.model)) if recipe.compile else state.model
    state.model.train()
    update = partial(_update, job, state, network)
    make = partial(updates, device=job.runtime.device) if job.objective.on_device else Plain
    advance = make(update, state.optimizer)
    mark = time.perf_counter()
    while state.step < recipe.steps:
        rate = learning_rate(state.step, recipe.lr, recipe.drops, recipe.drop_factor)
        job.objective.prepare(state.step)
        advance(rate)
        state.step += 1
        journal.stepped(state.step)

        last, signal = state.step == recipe.steps, stop()
        logging = last or state.step % recipe.log_every == 0
        judge = job.judge if last or state.step % recipe.evaluate_every == 0 else None
        saving = last or signal is not None or journal.checkpoint_is_due(state.step)
        if not (logging or judge or saving):
            continue
        job.runtime.synchronize()
        state.seconds += time.perf_counter() - mark
        _require_finite(state)
        if logging:
            journal.log(state, rate)
        if judge:
            _choose(judge(state.model), state, journal)
        if saving:
            journal.save(state)
        if signal is not None:
            raise Interrupted(signal, state.step, journal.run.path)
        mark = time.perf_counter()


def _update(job: Job, state: State, network: nn.Module) -> None:
    """One update by what is prepared."""
    state.optimizer.zero_grad(set_to_none=True)
    tally = job.objective.differentiate(network)
    state.optimizer.step()
    state.totals += tally


def _require_finite(state: State) -> None:
    if not state.totals[0].isfinite():
        raise RunError(f"the loss is not finite at step {state.step}; try a lower --lr")


def _choose(scores: dict[str, Any], state: State, journal: Journal) -> None:
    """Log what is held out says of the network, and keep the checkpoint that is best by it."""
    journal.log_validation(state, scores)
    if scores["validation_accuracy"] > state.best:
        state.best = scores["validation_accuracy"]
        journal.save_best(state)

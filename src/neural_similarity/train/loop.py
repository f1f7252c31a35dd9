"""The training loop; there is no other one in this library."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.convert import penalty
from neural_similarity.data import Batches, Images, Preprocess
from neural_similarity.train.checkpoint import RunError, State
from neural_similarity.train.graph import updates
from neural_similarity.train.journal import Journal
from neural_similarity.train.recipe import Recipe
from neural_similarity.train.runtime import Runtime
from neural_similarity.train.schedule import learning_rate
from neural_similarity.train.scoring import evaluate
from neural_similarity.train.stopping import Interrupted


@dataclass(frozen=True)
class Job:
    """What stays the same while training."""

    recipe: Recipe
    runtime: Runtime
    batches: Batches
    preprocess: Preprocess
    validation: Images | None


def fit(
    job: Job, state: State, journal: Journal, stop: Callable[[], int | None] = lambda: None
) -> None:
    """Update `state` until the recipe's last step.

    Step `s` sees batch `s` at the learning rate of step `s`, so a state restored from a checkpoint
    goes on exactly as if training had never stopped. On a GPU the host replays one captured update,
    see `graph`.

    Args:
        job: recipe, device, batches and held-out images.
        state: model, optimiser and position, changed in place.
        journal: where metrics and checkpoints go.
        stop: asked after every step; once it returns the number of a signal, a checkpoint is
            saved and `Interrupted` raised.
    """
    recipe = job.recipe
    network = torch.compile(state.model) if recipe.compile else state.model
    state.model.train()
    advance = updates(partial(_update, job, state, network), state.optimizer, job.runtime.device)
    mark = time.perf_counter()
    while state.step < recipe.steps:
        rate = learning_rate(state.step, recipe.lr, recipe.drops, recipe.drop_factor)
        job.batches.load(state.step)
        advance(rate)
        state.step += 1
        journal.stepped(state.step)

        last, signal = state.step == recipe.steps, stop()
        logging = last or state.step % recipe.log_every == 0
        scoring = job.validation is not None and (last or state.step % recipe.evaluate_every == 0)
        saving = last or signal is not None or journal.checkpoint_is_due(state.step)
        if not (logging or scoring or saving):
            continue
        job.runtime.synchronize()
        state.seconds += time.perf_counter() - mark
        _require_finite(state)
        if logging:
            journal.log(state, rate)
        if scoring:
            _choose(job, state, journal)
        if saving:
            journal.save(state)
        if signal is not None:
            raise Interrupted(signal, state.step, journal.run.path)
        mark = time.perf_counter()


def _update(job: Job, state: State, network: Callable[[Tensor], Tensor]) -> None:
    """One update by the loaded batch. Nothing in it waits for the device or draws on the host."""
    x, y = job.batches.loaded()
    with job.runtime.autocast():
        logits = network(x)
    logits = logits.float()
    loss = _loss(job.recipe, state.model, logits, y)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    state.optimizer.step()
    state.totals += _tally(loss, logits, y)


def _loss(recipe: Recipe, model: nn.Module, logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, and the penalty of static similarities."""
    loss = F.cross_entropy(logits, y, label_smoothing=recipe.label_smoothing)
    if recipe.penalty:
        loss = loss + recipe.penalty * penalty(model, recipe.penalty_measure)
    return loss


def _tally(loss: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Summed loss, correct images and images of a batch, without waiting for the device."""
    correct = (logits.detach().argmax(1) == y).sum()
    return torch.stack([loss.detach() * len(y), correct, torch.full_like(correct, len(y))]).double()


def _require_finite(state: State) -> None:
    if not state.totals[0].isfinite():
        raise RunError(f"the loss is not finite at step {state.step}; try a lower --lr")


def _choose(job: Job, state: State, journal: Journal) -> None:
    """Score the held-out images and keep the best checkpoint."""
    if job.validation is None:
        return
    scores = evaluate(state.model, job.validation, job.preprocess, job.runtime)
    journal.log_validation(state, scores)
    if scores.accuracy > state.best:
        state.best = scores.accuracy
        journal.save_best(state)

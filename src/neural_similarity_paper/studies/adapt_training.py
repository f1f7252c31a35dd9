"""Training and scoring one run of a study of adaptation in memory, with rates by group."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.conversion import fold, freeze_backbone, head_name, similarities_of
from neural_similarity.files import open_file
from neural_similarity.lab.data import Dataset, ImageSet, load_dataset
from neural_similarity.lab.data.images import digest_of, split_off
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe, AdaptationTask
from neural_similarity.lab.tasks.own_rate import find_rate
from neural_similarity.lab.train import Run, evaluate_model, pack_correct
from neural_similarity.lab.train.checkpoint import TrainingState, state_digest
from neural_similarity.lab.train.fitting import initial_state, make_optimizer
from neural_similarity.lab.train.graph import plain_update
from neural_similarity.lab.train.loop import Job, step_rate, update_once
from neural_similarity.lab.train.runtime import SCORE_PRECISION
from neural_similarity_paper.recipes.adaptation import RESNET
from neural_similarity_paper.studies.trials import cpu_runtime

LABEL_HALF, HELD_OUT = 500, 200
"""Test images of each class that give labels; and of these, those that rates are chosen on."""
MEMORY = Path("in-memory")
"""The folder of runs that write nothing."""


@lru_cache(maxsize=64)
def load_halves(name: str, data: Path, held_out: bool) -> Dataset:
    """The test images of a changed data set: a half that gives labels, and the half to score.

    The backbone has seen neither. With `held_out`, images of the first half stand for the second.
    """
    test = load_dataset(name, root=data).test
    classes = len(test.classes)
    scored, labelled = split_off(test, [LABEL_HALF] * classes, seed=0)
    if held_out:
        labelled, scored = split_off(labelled, [HELD_OUT] * classes, seed=0)
    return Dataset(name, labelled, scored)


def backbone_terms(*_: object) -> dict[str, str]:
    """The digest of the network's tensors."""
    with open_file(Path(RESNET["backbone"])) as file:
        return {"backbone": state_digest(torch.load(file, map_location="cpu", weights_only=True))}


@dataclass(frozen=True)
class MemoryRun:
    """A run in no folder, its task and its state."""

    task: AdaptationTask
    run: Run
    state: TrainingState

    @property
    def network(self) -> nn.Module:
        return self.state.model


def start_run(recipe: AdaptationRecipe, whole: Dataset, data: Path) -> MemoryRun:
    """The state before the first step, at the rate of `nsim train adapt` where the recipe has 0."""
    task = AdaptationTask.of_dataset(recipe, whole)
    task = task if recipe.lr else task.with_own_rate()
    run = task.new_run(MEMORY, "adapt", 1.0, data)
    return MemoryRun(task, run, initial_state(run, cpu_runtime()))


def parameter_parts(network: nn.Module, new_head: bool) -> list[list[nn.Parameter]]:
    """Parameters that train, in the order of `Trial.rates`: a new head's, M's, all others."""
    inside = {id(p) for m in similarities_of(network) for p in m.parameters()}
    head = {id(p) for p in network.get_submodule(head_name(network)).parameters()}
    head = head if new_head else set()
    parts: list[list[nn.Parameter]] = [[], [], []]
    for parameter in network.parameters():
        if parameter.requires_grad:
            at = 0 if id(parameter) in head else 1 if id(parameter) in inside else 2
            parts[at].append(parameter)
    return [part for part in parts if part]


def curvature_rates(memory: MemoryRun, parts: Sequence[list[nn.Parameter]]) -> list[float]:
    """For each part the rate of `nsim train adapt` where it alone trains."""
    recipe, rates = memory.task.recipe, []
    images, _ = memory.task.training_split()
    for part in parts:
        memory.network.train().requires_grad_(False)
        for parameter in part:
            parameter.requires_grad_(True)
        rates.append(find_rate(memory.network, images, memory.task.preprocess(), recipe))
    for parameter in (parameter for part in parts for parameter in part):
        parameter.requires_grad_(True)
    return rates


def fit_groups(memory: MemoryRun, rates: Sequence[float], steps: range) -> list[float]:
    """Train in these steps of the recipe, each group at its rate; 0 takes those by curvature."""
    parts = parameter_parts(memory.network, memory.task.recipe.classifier == "new")
    if not parts:
        rates = ()  # Statistics alone follow the images.
    elif list(rates) == [0.0]:
        rates = curvature_rates(memory, parts)
    groups = [{"params": p, "scale": rate} for p, rate in zip(parts, rates, strict=True)]
    memory.state.optimizer = make_optimizer(memory.run.recipe, groups)
    take_steps(memory, steps)
    return list(rates)


def take_steps(memory: MemoryRun, steps: range) -> None:
    """Train in these steps of the recipe."""
    task, run, state, runtime = memory.task, memory.run, memory.state, cpu_runtime()
    job = Job(run.recipe, runtime, task.objective(run, runtime))
    update = partial(update_once, job, state, state.model.train())
    advance = plain_update(update, state.optimizer)
    for step in steps:
        job.objective.prepare(step)
        advance(step_rate(run.recipe, step))


def run_in_memory(
    recipe: AdaptationRecipe,
    rates: Sequence[float],
    whole: Dataset,
    data: Path,
    then_all: bool = False,
) -> dict[str, Any]:
    """Train and score as `nsim train adapt` does, and return what a sheet keeps of it.

    With `then_all`, the similarities are folded after half of the steps, and all weights train for
    the other half, at the last rate. A run that diverges is scored as it is.
    """
    memory = start_run(recipe, whole, data)
    steps, trained = memory.run.recipe.steps, trained_numbers(memory.network)
    if not then_all:
        used = fit_groups(memory, rates, range(steps))
    else:
        used = fit_groups(memory, rates[:1], range(steps // 2))
        network = fold(memory.network)
        memory.state.model = freeze_backbone(network, norm=recipe.norm_mode, train=["*"])
        used += fit_groups(memory, rates[-1:], range(steps // 2, steps))
        trained += trained_numbers(memory.network)
    facts = run_facts(memory, score_in_memory(memory, whole.test), whole.test)
    finite = bool(memory.state.totals[0].isfinite())
    return facts | {"rates": used, "trained": trained, "finite": finite}


def trained_numbers(network: nn.Module) -> int:
    """How many numbers train."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def fix_trained(network: nn.Module, number: float) -> None:
    """Give all that trains this number, and let nothing train."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            nn.init.constant_(parameter, number).requires_grad_(False)


def score_in_memory(memory: MemoryRun, images: ImageSet) -> Tensor:
    """Whether the network classifies each of the images correctly, as other runs are scored."""
    preprocess, runtime = memory.run.preprocess, cpu_runtime().for_scores()
    return evaluate_model(memory.network, images, preprocess, runtime).correct


def run_facts(memory: MemoryRun, correct: Tensor, scored: ImageSet) -> dict[str, Any]:
    """What a sheet keeps of a run; digests of its data, and of the images that are scored."""
    return {
        "accuracy": correct.sum().item() / len(correct),
        "score_precision": SCORE_PRECISION,
        "trained": trained_numbers(memory.network),
        "data": memory.run.digest,
        "scored": digest_of([scored]),
        "correct": pack_correct(correct),
    }

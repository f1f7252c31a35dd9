"""Training and scoring one run of a study of adaptation in memory, with rates by group."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

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

    @classmethod
    def start(cls, recipe: AdaptationRecipe, whole: Dataset, data: Path) -> Self:
        """The state before the first step; a recipe's rate 0 is that of `nsim train adapt`."""
        task = AdaptationTask.of_dataset(recipe, whole)
        task = task if recipe.lr else task.with_own_rate()
        run = task.new_run(MEMORY, "adapt", 1.0, data)
        return cls(task, run, initial_state(run, cpu_runtime()))

    @property
    def network(self) -> nn.Module:
        return self.state.model

    def train(self, rates: Sequence[float], then_all: bool = False) -> dict[str, Any]:
        """Train and score as `nsim train adapt` does, and return what a sheet keeps of it.

        With `then_all`, the similarities are folded after half of the steps, and all weights train
        for the other half, at the last rate. A run that diverges is scored as it is.
        """
        recipe, trained = self.task.recipe, trained_numbers(self.network)
        steps = range(recipe.steps)
        if not then_all:
            used = self.fit_parts(rates, steps)
        else:
            used = self.fit_parts(rates[:1], steps[: len(steps) // 2])
            network = fold(self.network)
            self.state.model = freeze_backbone(network, norm=recipe.norm_mode, train=["*"])
            used += self.fit_parts(rates[-1:], steps[len(steps) // 2 :])
            trained += trained_numbers(self.network)
        return self.facts() | {"rates": used, "trained": trained, "finite": self.is_finite}

    @property
    def parameter_parts(self) -> list[list[nn.Parameter]]:
        """Parameters that train, in the order of `Trial.rates`: a new head's, M's, all others."""
        network, new_head = self.network, self.task.recipe.classifier == "new"
        head = network.get_submodule(head_name(network)).parameters() if new_head else ()
        in_head = set(map(id, head))
        inside = {id(p) for m in similarities_of(network) for p in m.parameters()}
        parts: list[list[nn.Parameter]] = [[], [], []]
        for parameter in network.parameters():
            if parameter.requires_grad:
                at = 0 if id(parameter) in in_head else 1 if id(parameter) in inside else 2
                parts[at].append(parameter)
        return [part for part in parts if part]

    def fit_parts(self, rates: Sequence[float], steps: range) -> list[float]:
        """Train in these steps of the recipe, each part at its rate; 0 takes those by curvature."""
        parts = self.parameter_parts
        if not parts:
            rates = ()  # Statistics alone follow the images.
        elif list(rates) == [0.0]:
            rates = self._curvature_rates(parts)
        groups = [{"params": p, "scale": rate} for p, rate in zip(parts, rates, strict=True)]
        self.state.optimizer = make_optimizer(self.run.recipe, groups)
        self.take_steps(steps)
        return list(rates)

    def _curvature_rates(self, parts: Sequence[list[nn.Parameter]]) -> list[float]:
        """For each part the rate of `nsim train adapt` where it alone trains."""
        recipe, rates = self.task.recipe, []
        images, _ = self.task.training_split()
        for part in parts:
            self.network.train().requires_grad_(False)
            for parameter in part:
                parameter.requires_grad_(True)
            rates.append(find_rate(self.network, images, self.task.preprocess(), recipe))
        for parameter in (parameter for part in parts for parameter in part):
            parameter.requires_grad_(True)
        return rates

    def take_steps(self, steps: range) -> None:
        """Train in these steps of the recipe."""
        run, state, runtime = self.run, self.state, cpu_runtime()
        job = Job(run.recipe, runtime, self.task.objective(run, runtime))
        update = partial(update_once, job, state, state.model.train())
        advance = plain_update(update, state.optimizer)
        for step in steps:
            job.objective.prepare(step)
            advance(step_rate(run.recipe, step))

    def score(self, images: ImageSet) -> Tensor:
        """Whether the network classifies each of the images correctly, as other runs are scored."""
        runtime = cpu_runtime().for_scores()
        return evaluate_model(self.network, images, self.run.preprocess, runtime).correct

    def facts(self, correct: Tensor | None = None) -> dict[str, Any]:
        """What a sheet keeps: answers on the test images, by default now, and digests of data."""
        scored = self.task.dataset.test
        correct = self.score(scored) if correct is None else correct
        return {
            "accuracy": correct.sum().item() / len(correct),
            "score_precision": SCORE_PRECISION,
            "trained": trained_numbers(self.network),
            "data": self.run.digest,
            "scored": digest_of([scored]),
            "correct": pack_correct(correct),
        }

    @property
    def is_finite(self) -> bool:
        """Whether the loss was a finite number at every step."""
        return bool(self.state.totals[0].isfinite())


def trained_numbers(network: nn.Module) -> int:
    """How many numbers train."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def fix_trained(network: nn.Module, number: float) -> None:
    """Give all that trains this number, and let nothing train."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            nn.init.constant_(parameter, number).requires_grad_(False)

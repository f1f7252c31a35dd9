"""Evaluations of few-shot runs: `results/fewshot/<recipe>/<budget>/<what was evaluated>.json`.

Every file holds what each task came to, so that methods are compared task by task.
"""

import base64
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_similarity.lab.paper.recording import code_of, layout, machine_of
from neural_similarity.lab.paper.records import budget_name
from neural_similarity.lab.paper.statistics import by_task
from neural_similarity.lab.recipes import FEW_SHOT_RECIPES
from neural_similarity.lab.recipes.few_shot import STARTS
from neural_similarity.lab.tasks.few_shot.method import Method
from neural_similarity.lab.tasks.few_shot.recipe import Classes, FewShotRecipe, retraining
from neural_similarity.lab.tasks.few_shot.run import Checkpoint, FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes
from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.checkpoint import step_of, weights_digest
from neural_similarity.lab.train.files import read_json, write_text
from neural_similarity.lab.train.recipe import (
    MACHINE,
    differing,
    recipe_from_json,
    recipe_to_json,
    scaled,
)
from neural_similarity.lab.train.run import ENVIRONMENT, find_checkpoint
from neural_similarity.models import parameters

FOLDER, EVALUATIONS = "fewshot", "evaluations"
FREE = ("seed", "start", *MACHINE)
"""Fields with which a run is one of its recipe whatever they are."""
RETRAINED = ("train_on", "select_on", "steps", "drops")
"""Fields that training on validation classes as well changes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """A method, of one run, on a list of tasks."""

    recipe: str
    """Name of the recipe."""
    budget: float
    """Share of its steps."""
    config: FewShotRecipe
    """Every setting, steps scaled already."""
    method: str
    """What was evaluated."""
    statistics: str
    """What normalised queries."""
    sizes: TaskSizes
    """Of the tasks."""
    tasks: dict[str, Any]
    """Number, seed, part and digest of the tasks."""
    checkpoint: dict[str, Any]
    """Which one was evaluated, its step, and SHA-256 of its weights, missing in older records."""
    start: dict[str, Any] | None
    """Recipe, seed, classes and budget of the run that training started from, and SHA-256 of its
    weights, by which its own evaluations are known."""
    retrained: dict[str, Any] | None = None
    """The step that was chosen on validation classes, and how many times more images there are,
    where training was anew on both; older records do not say."""
    code: dict[str, Any]
    """Version, commit, and whether files differed from the commit."""
    environment: dict[str, Any]
    """Machine, versions, device and precision of the training."""
    data: dict[str, Any]
    """Name and digest of the data set."""
    training: dict[str, Any]
    """Summary of the training."""
    summary: dict[str, Any]
    """Accuracy, reach of its interval, parameters, seconds."""
    correct: Tensor
    """Queries that were right in each task; int64 (tasks,)."""

    @property
    def accuracies(self) -> Tensor:
        """Share of right queries in each task; float64 (tasks,)."""
        return self.correct.double() / len(self.sizes.query_labels)

    @property
    def name(self) -> str:
        """The file name, without .json, see `evaluation_name`."""
        of = self.method, self.config.train_on, self.statistics, self.config.seed
        return evaluation_name(*of, self.sizes, self.tasks)


def evaluation_name(
    method: str,
    train_on: Classes,
    statistics: str,
    seed: int,
    sizes: TaskSizes,
    tasks: dict[str, Any],
) -> str:
    """What tells an evaluation from others of its recipe and budget.

    Method, classes of training, sizes of tasks, part with number and seed of tasks, statistics,
    seed of training: `fine-tuning.train.5w5s15q.test-2000-0.running.1`.
    """
    of = f"{sizes.ways}w{sizes.shots}s{sizes.queries}q"
    which = f"{tasks['part']}-{tasks['count']}-{tasks['seed']}"
    return f"{method}.{train_on}.{of}.{which}.{statistics}.{seed}"


def facts_of(tasks: TaskList) -> dict[str, Any]:
    """Number, seed, part and digest of tasks."""
    return {
        "count": len(tasks),
        "seed": tasks.seed,
        "part": tasks.part,
        "digest": tasks.digest,
    }


def make_evaluation(
    run: FewShotRun,
    method: tuple[str, Method],
    tasks: TaskList,
    correct: Tensor,
    *,
    checkpoint: Checkpoint,
    seconds: float,
) -> Evaluation:
    """What came of evaluating a method, given with its name, that `run` trained."""
    environment = read_json(run.path / ENVIRONMENT)
    name, module = method
    right = by_task(correct.double() / len(tasks.sizes.query_labels))
    found = find_checkpoint(run, checkpoint)
    return Evaluation(
        recipe=run.name,
        budget=run.budget,
        config=run.recipe,
        method=name,
        statistics=module.statistics,
        sizes=tasks.sizes,
        tasks=facts_of(tasks),
        checkpoint={
            "which": checkpoint,
            "step": step_of(found),
            "weights": weights_digest(found),
        },
        start=_public(environment.get("start")),
        retrained=environment.get("retrained"),
        code=code_of(environment),
        environment=machine_of(environment),
        data={"name": run.recipe.dataset, "digest": run.digest},
        training={k: v for k, v in read_json(run.summary).items() if k != "command"},
        summary={
            "accuracy": right.mean,
            "reach": right.reach,
            "parameters": parameters(module),
            "seconds": seconds,
        },
        correct=correct,
    )


def write_evaluation(folder: Path, evaluation: Evaluation) -> Path:
    """Write `evaluation` into `folder` under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{evaluation.name}.json"
    fields = {f.name: getattr(evaluation, f.name) for f in dataclasses.fields(evaluation)}
    fields["config"] = recipe_to_json(evaluation.config) | {"start": None}
    fields["sizes"] = dataclasses.asdict(evaluation.sizes)
    fields["correct"] = _pack(evaluation.correct)
    write_text(path, layout(fields))
    return path


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a file.

    Raises:
        ValueError: it is none, or damaged.
    """
    try:
        content = read_json(path)
        content["config"] = recipe_from_json(content["config"], FewShotRecipe)
        content["sizes"] = TaskSizes(**content["sizes"])
        content["correct"] = _unpack(content["correct"])
        evaluation = Evaluation(**content)
        mean = by_task(evaluation.accuracies).mean
        if mean != evaluation.summary["accuracy"]:
            raise ValueError(f"its tasks say {mean}, its summary {evaluation.summary}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as an evaluation: {error!r}") from error
    return evaluation


def record_few_shot(run: FewShotRun, results: Path) -> list[Path]:
    """Write the evaluations of a run that is one of its recipe to `results`.

    A record of the same outcome is left as it is.

    Raises:
        RunError: the run overrides fields, was never evaluated, or differs from its record.
    """
    if changed := overridden(run):
        raise RunError(
            f"{run.path} is no run of {run.name} as it stands: it overrides {', '.join(changed)}"
        )
    paths = sorted((run.path / EVALUATIONS).glob("*.json"))
    if not paths:
        raise RunError(f"{run.path} has no evaluations; `nsim evaluate {run.path}` first")
    folder = records_folder(results, run.name, run.budget)
    return [_record(folder, read_evaluation(path)) for path in paths]


def _record(folder: Path, evaluation: Evaluation) -> Path:
    path = folder / f"{evaluation.name}.json"
    if not path.exists():
        return write_evaluation(folder, evaluation)
    if not torch.equal(read_evaluation(path).correct, evaluation.correct):
        raise RunError(f"{path} exists already with another outcome; delete it to write it anew")
    return path


def overridden(run: FewShotRun) -> list[str]:
    """The fields in which a run is not one of its recipe, see `changed_fields`."""
    if run.name not in FEW_SHOT_RECIPES:
        raise RunError(f"{run.path} is of no named recipe, but of {run.name!r}")
    environment = read_json(run.path / ENVIRONMENT)
    start, retrained = environment.get("start"), environment.get("retrained")
    changed = changed_fields(run.name, run.budget, run.recipe, start, retrained)
    if run.recipe.train_on == "train+val" and retrained is None:
        changed += RETRAINED
    if start and "config" in start and _is_changed(start):
        changed += ["start"]
    return list(dict.fromkeys(changed))


def _is_changed(start: dict[str, Any]) -> bool:
    """Whether the run that training started from is none of its recipe."""
    if start["recipe"] not in FEW_SHOT_RECIPES:
        return True
    config = recipe_from_json(start["config"], FewShotRecipe)
    return bool(changed_fields(start["recipe"], start["budget"], config, None, start["retrained"]))


def _public(start: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a record tells of a start: what is left of it is that of its recipe."""
    told = ("recipe", "seed", "classes", "budget", "weights")
    return start and {name: start[name] for name in told if name in start}


def changed_fields(
    name: str,
    budget: float,
    config: FewShotRecipe,
    start: dict[str, Any] | None,
    retrained: dict[str, Any] | None,
) -> list[str]:
    """The fields in which `config` is not the named recipe.

    It must start from a run of `STARTS` of the same seed and classes; of which budget that was, the
    record tells. On training and validation classes it has as many steps as were chosen, where
    `retrained` tells.
    """
    original, free = scaled(FEW_SHOT_RECIPES[name], budget), FREE
    if retrained is not None:
        original = retraining(original, **retrained)
    elif config.train_on == "train+val":
        free = FREE + RETRAINED
    own = {"recipe": STARTS.get(name)}
    own |= {"seed": config.seed, "classes": config.train_on} if start else {}
    found = start or {"recipe": None}
    changed = [] if all(found.get(key, value) == value for key, value in own.items()) else ["start"]
    return changed + differing(config, original, free)


def records_folder(results: Path, recipe: str, budget: float) -> Path:
    """Where the records of a recipe at a budget lie."""
    return results / FOLDER / recipe / budget_name(budget)


def read_evaluations(results: Path, recipe: str, budget: float) -> list[Evaluation]:
    """The evaluations of a recipe at a budget, in the order of their names.

    Raises:
        ValueError: a file is damaged, lies in another record's place, or was made when the recipe
            had other settings.
    """
    folder = records_folder(results, recipe, budget)
    return [read_placed(path, recipe, budget) for path in sorted(folder.glob("*.json"))]


def read_placed(path: Path, recipe: str, budget: float) -> Evaluation:
    """The evaluation in a file among the records of a recipe at a budget.

    Raises:
        ValueError: as in `read_evaluations`.
    """
    found = read_evaluation(path)
    if (found.recipe, found.budget, found.name) != (recipe, budget, path.stem):
        raise ValueError(
            f"{path} holds {found.name} of {found.recipe}, budget {found.budget:g}; "
            "move it there or delete it"
        )
    if changed := changed_fields(recipe, budget, found.config, found.start, found.retrained):
        raise ValueError(
            f"{path} was made with other settings than {recipe} has now ({', '.join(changed)}); "
            "delete it to have it run again"
        )
    return found


def _pack(correct: Tensor) -> dict[str, Any]:
    packed = base64.b64encode(correct.numpy().astype("<u2").tobytes()).decode("ascii")
    return {"tasks": len(correct), "packed": packed}


def _unpack(record: dict[str, Any]) -> Tensor:
    values = np.frombuffer(base64.b64decode(record["packed"], validate=True), "<u2")
    if len(values) != record["tasks"]:
        raise ValueError(f"`packed` must hold {record['tasks']} tasks, got {len(values)}")
    return torch.from_numpy(values.astype(np.int64))

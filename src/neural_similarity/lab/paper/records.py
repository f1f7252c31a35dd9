"""Run records: what the tables are built from.

`results/<recipe>/<budget>/<seed>.json` is a run of recognition,
`results/fewshot/<recipe>/<budget>/<what was evaluated>.json` an evaluation of a few-shot run.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.files import read_json
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation, is_evaluation
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe, retraining
from neural_similarity.lab.train import Recipe, unpack_correct
from neural_similarity.lab.train.recipe import MACHINE, differing, recipe_from_json, scaled

FEW_SHOT_FOLDER = "fewshot"
FREE: tuple[str, ...] = ("seed", "start", *MACHINE)
"""Fields that may differ between a run and its recipe."""
RETRAINED = ("train_on", "select_on", "steps", "drops")
"""Fields that change when a run is trained on validation classes as well."""
DIRTY = "-dirty"
SEED = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A finished run of a named recipe with nothing overridden, and what it was scored on."""

    path: Path
    name: str
    budget: float
    """Share of the recipe's steps."""
    recipe: Recipe
    """Every setting, steps scaled already."""
    code: dict[str, Any]
    """Version, commits, and whether files differed from a commit."""
    environment: dict[str, Any]
    """Machine, versions, device and precision."""
    data: dict[str, Any]
    """Name and digest of the data set; how many classes, where the record says it."""
    training: dict[str, Any]
    """Summary of the training: steps, seconds, parameters."""
    summary: dict[str, Any]
    correct: Tensor
    """Which test images were right, boolean; or how many queries of each task."""
    evaluation: Evaluation | None = None
    """For a few-shot run, what was evaluated."""
    start: dict[str, Any] | None = None
    """Recipe, seed, classes and budget of the run that training started from, and SHA-256 of its
    weights, by which its own evaluations are known."""
    retrained: dict[str, Any] | None = None
    """The step that was chosen on validation classes, and how many times more images there are,
    where training was anew on both; older records do not say."""
    learned: dict[str, Any] | None = None
    """By layer, see `learned.learned`; only of recognition, and older records have none."""

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def stem(self) -> str:
        """The name of the file, without .json."""
        return _stem(self.recipe, self.evaluation)


def _stem(recipe: Recipe, evaluation: Evaluation | None) -> str:
    if isinstance(recipe, FewShotRecipe) and evaluation is not None:
        return evaluation.name(recipe.train_on, recipe.seed)
    return f"{recipe.seed}"


def records_folder(results: Path, name: str, budget: float) -> Path:
    """The folder of a recipe's records at a budget."""
    few_shot = isinstance(RECIPES.get(name), FewShotRecipe)
    return (results / FEW_SHOT_FOLDER if few_shot else results) / name / budget_name(budget)


def commits_of(environment: dict[str, Any]) -> list[str]:
    """The commits that trained a run, each once: the one that began it, then those that went on."""
    processes = [environment, *environment.get("resumed", [])]
    found = [process["commit"] for process in processes if process.get("commit")]
    return list(dict.fromkeys(commit.removesuffix(DIRTY) for commit in found))


def budget_name(budget: float) -> str:
    """The budget as a file name, exactly: 1, 0.125, 0.0625."""
    return repr(float(budget)).removesuffix(".0")


def changed_fields(
    name: str,
    budget: float,
    recipe: Recipe,
    start: dict[str, Any] | None = None,
    retrained: dict[str, Any] | None = None,
) -> list[str]:
    """The fields in which `recipe` is not the named one at `budget`, whatever seed and machine.

    A recipe must start from a run of `STARTS` of the same seed and budget; in few-shot learning of
    the same seed and classes, and of which budget that was, the record tells. On training and
    validation classes it has as many steps as were chosen, where `retrained` tells.
    """
    original, free = scaled(RECIPES[name], budget), FREE
    own: dict[str, Any] = {"recipe": STARTS.get(name)} | ({"seed": recipe.seed} if start else {})
    if name in STARTS:
        free += ("backbone",)
    if isinstance(recipe, FewShotRecipe) and isinstance(original, FewShotRecipe):
        if retrained is not None:
            original = retraining(original, **retrained)
        elif recipe.train_on == "train+val":
            free = FREE + RETRAINED
        own |= {"classes": recipe.train_on} if start else {}
    elif start:
        own["budget"] = budget
    found = start or {"recipe": None}
    changed = [] if all(found.get(key, value) == value for key, value in own.items()) else ["start"]
    return changed + differing(recipe, original, free)


def read_records(results: Path, name: str, budget: float) -> list[Record]:
    """The records of a recipe at a budget, in the order of their files' names.

    Raises:
        ValueError: a file is damaged, lies in another record's place, or was made when the recipe
            had other settings.
    """
    folder = records_folder(results, name, budget)
    return [read_placed(file, name, budget) for file in record_files(folder)]


def read_placed(path: Path, name: str, budget: float) -> Record:
    """The record in a file among those of a recipe at a budget.

    Raises:
        ValueError: as in `read_records`.
    """
    record = read_record(path)
    if (record.name, record.budget, record.stem) != (name, budget, path.stem):
        raise ValueError(
            f"{path} holds {record.stem} of {record.name}, budget {record.budget:g}; move it there "
            "or delete it"
        )
    if changed := changed_fields(name, budget, record.recipe, record.start, record.retrained):
        raise ValueError(
            f"{path} was made with other settings than {name} has now ({', '.join(changed)}); "
            "delete it to have it run again"
        )
    return record


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        ValueError: it cannot be read as one.
    """
    try:
        content = read_json(path)
        evaluation = Evaluation.from_json(content) if "tasks" in content else None
        kind = Recipe if evaluation is None else FewShotRecipe
        kind = AdaptationRecipe if "backbone" in content["config"] else kind
        right = unpack_correct(content["correct"]) if evaluation is None else evaluation.correct
        record = Record(
            path=path,
            name=content["recipe"],
            budget=content["budget"],
            recipe=recipe_from_json(content["config"], kind),
            code=content["code"],
            environment=content["environment"],
            data=content["data"],
            training=content.get("training", content["summary"]),
            summary=content["summary"],
            correct=right,
            evaluation=evaluation,
            start=content.get("start"),
            retrained=content.get("retrained"),
            learned=content.get("learned"),
        )
        share = right.sum().item() / len(right)
        if evaluation is None and share != record.summary["test_accuracy"]:
            raise ValueError(f"its images say {share}, its summary {record.summary}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as a run record: {error!r}") from error
    return record


def budgets(results: Path, names: Iterable[str]) -> list[str]:
    """The budgets at which any of the recipes has records, as `budget_name` writes them."""
    folders = {folder.name for name in names for folder in budget_folders(results, name)}
    return sorted(folders, key=float, reverse=True)


def budget_folders(results: Path, name: str) -> list[Path]:
    """The folders with records of a recipe, one a budget; other names are a user's."""
    parent = records_folder(results, name, 1.0).parent
    return [path for path in parent.glob("*") if _is_budget(path.name) and record_files(path)]


def _is_budget(name: str) -> bool:
    try:
        return budget_name(float(name)) == name and 0 < float(name) < inf
    except ValueError:
        return False


def record_files(folder: Path) -> list[Path]:
    """The records in a folder, in the order of their names; other names are a user's."""
    return [p for p in sorted(folder.glob("*.json")) if SEED.fullmatch(p.stem) or is_evaluation(p)]

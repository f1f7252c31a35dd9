"""Reading run records, each checked field by field.

`results/<recipe>/<budget>/<seed>.json` is a run of recognition,
`results/fewshot/<recipe>/<budget>/<what was evaluated>.json` an evaluation of a few-shot run.
"""

from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.tasks.few_shot import FewShotRecipe
from neural_similarity.lab.train.files import check_fields, read_result
from neural_similarity.lab.train.recipe import (
    MACHINE,
    TrainingRecipe,
    differing_fields,
    recipe_from_json,
    scale_recipe,
)
from neural_similarity_paper.tables.few_shot_records import EvaluationRecords
from neural_similarity_paper.tables.kinds import Record, RunRecords, has_failed

FREE: tuple[str, ...] = ("seed", *MACHINE)
"""Fields that may differ between a run and its recipe."""
DIRTY = "-dirty"
_NUMBER = float | int
_FIELD_TYPES = {
    "budget": _NUMBER,
    **dict.fromkeys(("code.version", "data.digest"), str),
    "code.dirty": bool,
    **{f"environment.{name}": str for name in ("cpu", "device", "precision", "torch")},
    "environment.threads": int,
    **dict.fromkeys(("code.commit", "environment.commit"), str | None),
    **{f"{name}.parameters": int for name in ("summary", "training")},
    **{f"{name}.seconds": _NUMBER for name in ("summary", "training")},
    "training.steps": int,
    **dict.fromkeys(("summary.trained", "summary.bytes", "data.classes"), int | None),
    "summary.test_top5_error_percent": _NUMBER | None,
    **dict.fromkeys(("start", "retrained", "learned"), dict | None),
}
"""Types of what tables show of records, see `check_fields`."""


def kind_of(recipe: TrainingRecipe) -> RunRecords:
    """How records of runs of such a recipe are named, made, read and shown."""
    return EvaluationRecords() if isinstance(recipe, FewShotRecipe) else RunRecords()


def records_folder(results: Path, name: str, budget: float) -> Path:
    """The folder of a recipe's records at a budget."""
    kind = kind_of(RECIPES[name]).folder if name in RECIPES else ""
    return results / kind / name / budget_name(budget)


def commits_of(environment: dict[str, Any]) -> list[str]:
    """The commits that trained a run, each once: the one that began it, then those that went on."""
    processes = [environment, *environment.get("resumed", [])]
    commits = [process["commit"] for process in processes if process.get("commit")]
    return list(dict.fromkeys(commit.removesuffix(DIRTY) for commit in commits))


def budget_name(budget: float) -> str:
    """The budget as a file name, exactly: 1, 0.125, 0.0625."""
    return repr(float(budget)).removesuffix(".0")


def changed_fields(
    name: str,
    budget: float,
    recipe: TrainingRecipe,
    start: dict[str, Any] | None = None,
    retrained: dict[str, Any] | None = None,
    *,
    old: bool = False,
) -> list[str]:
    """The fields in which `recipe` is not the named one at `budget`, whatever seed and machine.

    A recipe must start from a run of `STARTS` of the same seed, and of the budget or classes that
    its kind asks for. A run retrained on validation data has the number of steps that was chosen;
    `old` records do not say which.
    """
    original, free = scale_recipe(RECIPES[name], budget), FREE
    if retrained is not None:
        original = original.retrained(**retrained)
    elif old:
        free += recipe.retrained_fields
    if name in STARTS:
        free += (recipe.START,)
    terms: dict[str, Any] = {"recipe": STARTS.get(name)}
    if start:
        terms |= {"seed": recipe.seed} | recipe.start_terms(budget)
    facts = start or {"recipe": None}
    same = all(facts.get(key, value) == value for key, value in terms.items())
    return ([] if same else ["start"]) + differing_fields(recipe, original, free)


def read_records(results: Path, name: str, budget: float) -> list[Record]:
    """The records of a recipe at a budget, in the order of their files' names.

    Raises:
        ValueError: a file is damaged, lies in another record's place, or was made when the recipe
            had other settings.
    """
    files = record_files(records_folder(results, name, budget), name)
    return [read_placed(file, name, budget) for file in files]


def read_placed(path: Path, name: str, budget: float) -> Record:
    """The record in a file among those of a recipe at a budget."""
    record = read_record(path)
    if (record.name, record.budget, record.stem) != (name, budget, path.stem):
        raise ValueError(
            f"{path} holds {record.stem} of {record.name}, budget {record.budget:g}; move it there "
            "or delete it"
        )
    facts = record.recipe, record.start, record.retrained
    if changed := changed_fields(name, budget, *facts, old=True):
        raise ValueError(
            f"{path} was made with other settings than {name} has now ({', '.join(changed)}); "
            "delete it to have it run again"
        )
    return record


def read_record(path: Path) -> Record:
    """The record in a file."""
    return read_result(path, "a run record", partial(_parse_record, path))


def _parse_record(path: Path, content: dict[str, Any]) -> Record:
    content.setdefault("training", content["summary"])
    recipe = recipe_from_json(content["config"], type(RECIPES[content["recipe"]]))
    outcome = kind_of(recipe).read_outcome(content, recipe)
    check_fields(content, _FIELD_TYPES)
    for process in content["environment"].get("resumed", []):
        check_fields(process, {"commit": str | None})
    facts = {field.name: content[field.name] for field in fields(Record) if field.name in content}
    facts |= outcome | {"path": path, "name": content["recipe"], "recipe": recipe}
    return Record(**facts | {"failed": _training_failed(content, outcome["accuracies"])})


def _training_failed(content: dict[str, Any], accuracies: Tensor) -> bool:
    """Whether a record's training failed; older ones do not say how many classes there are."""
    losses = [entry["loss"] for entry in content.get("metrics", []) if "loss" in entry]
    classes = content["data"].get("classes")
    return classes is not None and has_failed(losses, accuracies.mean().item(), classes)


def recorded_budgets(results: Path, names: Iterable[str]) -> list[str]:
    """The budgets at which any of the recipes has records, as `budget_name` writes them."""
    folders = {folder.name for name in names for folder in budget_folders(results, name)}
    return sorted(folders, key=float, reverse=True)


def budget_folders(results: Path, name: str) -> list[Path]:
    """The folders with records of a recipe, one a budget; other names are a user's."""
    parent = records_folder(results, name, 1.0).parent
    return [path for path in parent.glob("*") if _is_budget(path.name) and record_files(path, name)]


def _is_budget(name: str) -> bool:
    try:
        return budget_name(float(name)) == name and 0 < float(name) < inf
    except ValueError:
        return False


def record_files(folder: Path, name: str) -> list[Path]:
    """The records of a recipe in a folder, in the order of their names; others are a user's."""
    if name not in RECIPES:
        return []
    is_record = kind_of(RECIPES[name]).is_record
    return [path for path in sorted(folder.glob("*.json")) if is_record(path)]

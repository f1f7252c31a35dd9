"""Reading run records, each checked field by field, and writing those of finished runs.

`results/<recipe>/<budget>/<seed>.json` is a run of recognition,
`results/fewshot/<recipe>/<budget>/<what was evaluated>.json` an evaluation of a few-shot run.
"""

from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from neural_similarity.files import read_json
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.tasks.few_shot import FewShotRecipe
from neural_similarity.lab.train import Run, RunError
from neural_similarity.lab.train.files import check_fields, read_result, write_result
from neural_similarity.lab.train.recipe import (
    MACHINE,
    TrainingRecipe,
    differing_fields,
    recipe_from_json,
    recipe_to_json,
    scale_recipe,
)
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts, require_finished
from neural_similarity_paper.tables.kinds import EvaluationRecords, Record, RunRecords, has_failed

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
    its kind asks for, which has its recipe's settings where `start` says them. A run retrained on
    validation data has the number of steps that was chosen; `old` records do not say which.
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
    if same and "config" in facts:
        settings = recipe_from_json(facts["config"], type(RECIPES[facts["recipe"]]))
        before = facts["recipe"], facts["budget"], settings, facts.get("start"), facts["retrained"]
        same = not changed_fields(*before)
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
    facts: dict[str, Any] = {f.name: content[f.name] for f in fields(Record) if f.name in content}
    facts |= outcome | {"path": path, "name": content["recipe"], "recipe": recipe}
    losses = [entry["loss"] for entry in content.get("metrics", []) if "loss" in entry]
    accuracy, classes = outcome["accuracies"].mean().item(), content["data"].get("classes")
    failed = classes is not None and has_failed(losses, accuracy, classes)  # None in older ones.
    return Record(**facts, failed=failed)


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
    stems = kind_of(RECIPES[name]).stems
    return [path for path in sorted(folder.glob("*.json")) if stems.fullmatch(path.stem)]


def write_records(run: Run, results: Path) -> list[Path]:
    """Write the records of a finished run: one, or, of a few-shot run, one for each evaluation.

    A record of the same outcome is left as it is.

    Returns:
        The records' files.

    Raises:
        RunError: the run is not finished, has overridden fields, was never evaluated where that is
            asked for, or differs from its record.
    """
    require_finished(run)
    if changed := overridden_fields(run):
        raise RunError(
            f"{run.path} is not a run of {run.name} as it stands: it overrides "
            f"{', '.join(changed)}; "
            "only runs with another seed, budget or machine setting become records"
        )
    folder, facts = records_folder(results, run.name, run.budget), _run_facts(run)
    outcomes = kind_of(run.recipe).outcomes_of(run)
    contents = {folder / f"{stem}.json": facts | outcome for stem, outcome in outcomes.items()}
    for path, content in contents.items():
        if not path.exists():
            write_result(path, content)
        elif read_record(path) and read_json(path)["correct"] != content["correct"]:
            raise RunError(
                f"{path} exists already with another outcome; delete it to write it again"
            )
    return list(contents)


def _run_facts(run: Run) -> dict[str, Any]:
    """What every record says about its run."""
    environment = read_facts(run.path / ENVIRONMENT)
    config = recipe_to_json(run.recipe)
    if run.name in STARTS:  # By a path on this machine.
        config[run.recipe.START] = getattr(RECIPES[run.name], run.recipe.START)
    start, public = environment.get("start"), ("recipe", "seed", "classes", "budget", "weights")
    if start is not None:  # Its settings are those of its recipe.
        start = {name: start[name] for name in public if name in start}
    origin = {"start": start, "retrained": environment.get("retrained")}
    return {
        "recipe": run.name,
        "budget": run.budget,
        "seed": run.recipe.seed,
        "code": code_of(environment),
        "environment": machine_of(environment),
        "data": {"name": run.recipe.dataset, "digest": run.digest, "classes": len(run.classes)},
        "config": config,
        **{name: facts for name, facts in origin.items() if facts is not None},
    }


def overridden_fields(run: Run) -> list[str]:
    """The fields in which a run is not one of its recipe, see `changed_fields`.

    Raises:
        RunError: no recipe has that name.
    """
    if run.name not in RECIPES:
        raise RunError(f"{run.path} is not a run of a named recipe, but of {run.name!r}")
    environment = read_facts(run.path / ENVIRONMENT)
    start, retrained = environment.get("start"), environment.get("retrained")
    changed = changed_fields(run.name, run.budget, run.recipe, start, retrained)
    if start and run.name in STARTS and start.get("digest", run.digest) != run.digest:
        changed += ["start"]
    return list(dict.fromkeys(changed))


def code_of(environment: dict[str, Any]) -> dict[str, Any]:
    """The code that began the run, and other commits under which it went on, if there are any.

    It is dirty if any of the run's processes ran changed files.
    """
    processes = [environment, *environment.get("resumed", [])]
    began = environment["commit"] and environment["commit"].removesuffix(DIRTY)
    code = {
        "version": environment["neural_similarity"],
        "commit": began,
        "dirty": any((process["commit"] or "").endswith(DIRTY) for process in processes),
    }
    others = [commit for commit in commits_of(environment) if commit != began]
    return code | ({"resumed": others} if others else {})


def machine_of(environment: dict[str, Any]) -> dict[str, Any]:
    """The environment without a machine's folder names, since records are public."""
    private = ("command", "start", "retrained")
    facts = {key: value for key, value in environment.items() if key not in private}
    if "resumed" in facts:
        facts["resumed"] = [machine_of(process) for process in facts["resumed"]]
    return facts

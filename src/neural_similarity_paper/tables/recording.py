"""Writing the records of finished runs."""

from pathlib import Path
from typing import Any

from neural_similarity.files import read_json
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.train import Run, RunError
from neural_similarity.lab.train.files import write_result
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts, require_finished
from neural_similarity_paper.tables.records import (
    DIRTY,
    changed_fields,
    commits_of,
    kind_of,
    read_record,
    records_folder,
)


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
    return [
        _write_record(folder / f"{stem}.json", facts | outcome)
        for stem, outcome in outcomes.items()
    ]


def _write_record(path: Path, content: dict[str, Any]) -> Path:
    if not path.exists():
        write_result(path, content)
    elif read_record(path) and read_json(path)["correct"] != content["correct"]:
        raise RunError(f"{path} exists already with another outcome; delete it to write it again")
    return path


def _run_facts(run: Run) -> dict[str, Any]:
    """What every record says about its run."""
    environment = read_facts(run.path / ENVIRONMENT)
    config = recipe_to_json(run.recipe)
    if run.name in STARTS:  # By a path on this machine.
        config[run.recipe.START] = getattr(RECIPES[run.name], run.recipe.START)
    origin = {
        "start": public_start(environment.get("start")),
        "retrained": environment.get("retrained"),
    }
    return {
        "recipe": run.name,
        "budget": run.budget,
        "seed": run.recipe.seed,
        "code": code_of(environment),
        "environment": machine_of(environment),
        "data": {
            "name": run.recipe.dataset,
            "digest": run.digest,
            "classes": len(run.classes),
        },
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
    other_data = start and run.name in STARTS and start.get("digest", run.digest) != run.digest
    if other_data or (start and "config" in start and _is_changed(start)):
        changed += ["start"]
    return list(dict.fromkeys(changed))


def _is_changed(start: dict[str, Any]) -> bool:
    """Whether training started from a run of another recipe, or that one did."""
    name, before = start["recipe"], start.get("start")
    if name not in RECIPES:
        return True
    config = recipe_from_json(start["config"], type(RECIPES[name]))
    changed = changed_fields(name, start["budget"], config, before, start["retrained"])
    return bool(changed) or (before is not None and _is_changed(before))


def public_start(start: dict[str, Any] | None) -> dict[str, Any] | None:
    """The facts about a start that a record holds; its settings are those of its recipe."""
    names = ("recipe", "seed", "classes", "budget", "weights")
    return start and {name: start[name] for name in names if name in start}


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
    facts = {
        key: value
        for key, value in environment.items()
        if key not in ("command", "start", "retrained")
    }
    if "resumed" in facts:
        facts["resumed"] = [machine_of(process) for process in facts["resumed"]]
    return facts

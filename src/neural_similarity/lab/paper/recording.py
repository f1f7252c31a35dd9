"""From the folder of a finished run to its record."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_similarity.conversion import fold
from neural_similarity.lab.paper.records import DIRTY, commits_of, overridden, record_path
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Run, RunError
from neural_similarity.lab.train.files import read_json, write_text
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import MACHINE, recipe_to_json
from neural_similarity.lab.train.run import ENVIRONMENT, require_finished
from neural_similarity.models import macs


def write_record(run: Run, results: Path) -> Path:
    """Write the record of a finished run; one that is there already is never overwritten.

    Args:
        run: a finished run.
        results: folder of the records.

    Returns:
        The record's file.

    Raises:
        RunError: the run is not finished, has overridden fields, or is recorded already.
    """
    path = record_path(results, run.name, run.budget, run.recipe.seed)
    _require_recordable(run, path)
    summary = read_json(run.summary)
    correct = summary.pop("test_correct")
    size = (run.channels, run.image_size, run.image_size)
    summary["macs"] = macs(fold(run.build(), dynamic="keep"), *size)
    summary["command"] = command(run)
    environment = read_json(run.path / ENVIRONMENT)
    content = {
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
        "config": recipe_to_json(run.recipe),
        "summary": summary,
        "metrics": read_lines(run.metrics),
        "correct": correct,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, layout(content))
    return path


def command(run: Run) -> str:
    """The command that repeats a run with nothing overridden, from any folder of data sets.

    It has the precision and the threads of the run, which another machine may choose otherwise.
    """
    original = RECIPES[run.name]
    threads = read_json(run.path / ENVIRONMENT)["threads"]
    recipe = replace(run.recipe, precision=run.precision, threads=threads)
    words = ["nsim", "train", run.name]
    words += ["--budget", f"{run.budget!r}", "--seed", f"{recipe.seed}"]
    for field in MACHINE:
        if getattr(recipe, field) != getattr(original, field):
            words += [f"--{field.replace('_', '-')}", f"{getattr(recipe, field)}"]
    return shlex.join(words)


def _require_recordable(run: Run, path: Path) -> None:
    require_finished(run)
    if changed := overridden(run.name, run.budget, run.recipe):
        raise RunError(
            f"{run.path} is no run of {run.name} as it stands: it overrides {', '.join(changed)}; "
            "only runs with another seed, budget or machine setting become records"
        )
    if path.exists():
        raise RunError(f"{path} exists already; delete it to write it from {run.path}")


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
    """The environment without what names folders of a machine: records are for everyone."""
    kept = {key: value for key, value in environment.items() if key != "command"}
    if "resumed" in kept:
        kept["resumed"] = [machine_of(process) for process in kept["resumed"]]
    return kept


def layout(content: dict[str, Any]) -> str:
    """JSON with an entry a line, so that records read and compare well in git."""
    lines = (f"  {json.dumps(key)}: {_value(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    if not value or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
    else:
        entries = [json.dumps(entry) for entry in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n    " + ",\n    ".join(entries) + f"\n  {closing}"

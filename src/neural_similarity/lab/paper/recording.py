"""Writing the records of finished runs."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_similarity.conversion import fold
from neural_similarity.files import read_json, write_text
from neural_similarity.lab.paper.learned import learned
from neural_similarity.lab.paper.records import (
    DIRTY,
    RETRAINED,
    changed_fields,
    commits_of,
    read_record,
    records_folder,
)
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation, read_evaluations
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.tasks.rivals import merged
from neural_similarity.lab.train import Run, RunError
from neural_similarity.lab.train.files import layout
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import MACHINE, recipe_from_json, recipe_to_json
from neural_similarity.lab.train.run import (
    ENVIRONMENT,
    checkpoint_facts,
    load_network,
    require_finished,
)
from neural_similarity.models import macs


def write_records(run: Run, results: Path) -> list[Path]:
    """Write the records of a finished run: one, or, of a few-shot run, one for each evaluation.

    A record of the same outcome is left as it is.

    Args:
        run: a finished run.
        results: folder of the records.

    Returns:
        The records' files.

    Raises:
        RunError: the run is not finished, has overridden fields, was never evaluated where that is
            asked for, or differs from its record.
    """
    require_finished(run)
    if changed := overridden(run):
        raise RunError(
            f"{run.path} is not a run of {run.name} as it stands: it overrides "
            f"{', '.join(changed)}; "
            "only runs with another seed, budget or machine setting become records"
        )
    folder = records_folder(results, run.name, run.budget)
    contents = (
        _evaluated(run) if isinstance(run, FewShotRun) else {f"{run.recipe.seed}": _scored(run)}
    )
    return [_write(folder / f"{stem}.json", content) for stem, content in contents.items()]


def _write(path: Path, content: dict[str, Any]) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, layout(content))
    elif read_record(path) and read_json(path)["correct"] != content["correct"]:
        raise RunError(f"{path} exists already with another outcome; delete it to write it again")
    return path


def _scored(run: Run) -> dict[str, Any]:
    """What a record says about a run that was scored on test images."""
    summary = read_json(run.summary)
    correct = summary.pop("test_correct")
    size = (run.channels, run.image_size, run.image_size)
    summary["macs"] = macs(fold(merged(run.build()), dynamic="keep"), *size)
    summary["command"] = command(run)
    start = public(read_json(run.path / ENVIRONMENT).get("start"))
    return _facts_of(run) | {
        **({} if start is None else {"start": start}),
        "checkpoint": checkpoint_facts(run, "last"),
        "summary": summary,
        "metrics": read_lines(run.metrics),
        "learned": learned(merged(load_network(run))),
        "correct": correct,
    }


def _evaluated(run: FewShotRun) -> dict[str, dict[str, Any]]:
    """What records say about a few-shot run's evaluations, by the names of their files."""
    evaluations = read_evaluations(run)
    if not evaluations:
        raise RunError(f"{run.path} has no evaluations; `nsim evaluate {run.path}` first")
    environment = read_json(run.path / ENVIRONMENT)
    training = {"start": public(environment.get("start"))}
    training["retrained"] = environment.get("retrained")
    training["training"] = read_json(run.summary) | {"command": command(run)}
    facts, recipe = _facts_of(run), run.recipe
    return {
        one.name(recipe.train_on, recipe.seed): facts | training | _evaluation(run, one)
        for one in evaluations
    }


def _evaluation(run: FewShotRun, one: Evaluation) -> dict[str, Any]:
    folder = f"runs/{run.recipe.folder(run.name)}"
    facts = ("count", "seed", "part")
    words = evaluate_words(folder, one.method, one.sizes, *(one.tasks[fact] for fact in facts))
    if one.statistics != METHODS[one.method].statistics:
        words += ["--batch-norm", one.statistics]
    content = one.to_json()
    return content | {"summary": one.summary | {"command": shlex.join(["nsim", *words])}}


def evaluate_words(
    folder: str, method: str, sizes: TaskSizes, count: int, seed: int, part: str
) -> list[str]:
    """The arguments of `nsim` that evaluate the run in a folder."""
    numbers = {"ways": sizes.ways, "shots": sizes.shots, "queries": sizes.queries}
    numbers |= {"tasks": count, "task-seed": seed}
    options = [word for name, number in numbers.items() for word in (f"--{name}", f"{number}")]
    return ["evaluate", folder, "--method", method, *options, "--part", part]


def _facts_of(run: Run) -> dict[str, Any]:
    """What every record says about its run."""
    environment = read_json(run.path / ENVIRONMENT)
    config = recipe_to_json(run.recipe)
    if run.name in STARTS:  # By a path on this machine.
        field = start_option(run.name).removeprefix("--")
        config[field] = getattr(RECIPES[run.name], field)
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
    }


def command(run: Run) -> str:
    """The command that repeats a run with nothing overridden, from any folder of data sets.

    It has the precision and the threads of the run, which another machine may choose otherwise,
    and names the run that training started from, or that was retrained, by its usual folder.
    """
    environment = read_json(run.path / ENVIRONMENT)
    start = _start_words(run, environment.get("start"))
    if environment.get("retrained") is not None:
        before = replace(run.recipe, train_on="train").folder(run.name)
        return shlex.join(["nsim", "train", "--retrain", f"runs/{before}", *start])
    recipe = replace(run.recipe, precision=run.precision, threads=environment["threads"])
    words = ["nsim", "train", run.name]
    words += ["--budget", f"{run.budget!r}", "--seed", f"{recipe.seed}", *start]
    for field in MACHINE:
        if getattr(recipe, field) != getattr(RECIPES[run.name], field):
            words += [f"--{field.replace('_', '-')}", f"{getattr(recipe, field)}"]
    return shlex.join(words)


def _start_words(run: Run, start: dict[str, Any] | None) -> list[str]:
    if start is None or run.name not in STARTS:
        return []
    return [start_option(run.name), f"runs/{run.recipe.folder(start['recipe'])}"]


def start_option(name: str) -> str:
    """The option of `nsim train` by which a recipe takes the run that it starts from."""
    return "--backbone" if isinstance(RECIPES[name], AdaptationRecipe) else "--start"


def overridden(run: Run) -> list[str]:
    """The fields in which a run is not one of its recipe, see `changed_fields`.

    Raises:
        RunError: no recipe has that name.
    """
    if run.name not in RECIPES:
        raise RunError(f"{run.path} is not a run of a named recipe, but of {run.name!r}")
    environment = read_json(run.path / ENVIRONMENT)
    start, retrained = environment.get("start"), environment.get("retrained")
    changed = changed_fields(run.name, run.budget, run.recipe, start, retrained)
    if retrained is None and getattr(run.recipe, "train_on", "train") == "train+val":
        changed += RETRAINED
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


def public(start: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a record tells of a start: what is left of it is that of its recipe."""
    told = ("recipe", "seed", "classes", "budget", "weights")
    return start and {name: start[name] for name in told if name in start}


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
    """The environment without folder names of a machine, since records are public."""
    kept = {
        key: value
        for key, value in environment.items()
        if key not in ("command", "start", "retrained")
    }
    if "resumed" in kept:
        kept["resumed"] = [machine_of(process) for process in kept["resumed"]]
    return kept

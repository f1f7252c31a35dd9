"""Run records, `results/<recipe>/<budget>/<seed>.json`: what the tables are built from."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Recipe, unpack_correct
from neural_similarity.lab.train.files import read_json
from neural_similarity.lab.train.recipe import MACHINE, differing, recipe_from_json, scaled

DIRTY = "-dirty"


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A finished run of a named recipe with nothing overridden."""

    path: Path
    """The file."""
    name: str
    """Name of the recipe."""
    budget: float
    """Share of the recipe's steps."""
    recipe: Recipe
    """Every setting, steps scaled already."""
    code: dict[str, Any]
    """Version, commits, and whether files differed from a commit."""
    environment: dict[str, Any]
    """Machine, versions, device and precision."""
    digest: str
    """Digest of the data set."""
    classes: int | None
    """How many it has, where the record says it."""
    summary: dict[str, Any]
    """Test scores, parameters, MACs, steps, seconds, command."""
    correct: Tensor
    """Which test images were right; boolean (n,)."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.seed


def record_path(results: Path, name: str, budget: float, seed: int) -> Path:
    """Where the record of a run lies."""
    return results / name / budget_name(budget) / f"{seed}.json"


def commits_of(environment: dict[str, Any]) -> list[str]:
    """The commits that trained a run, each once: the one that began it, then those that went on."""
    processes = [environment, *environment.get("resumed", [])]
    found = [process["commit"] for process in processes if process.get("commit")]
    return list(dict.fromkeys(commit.removesuffix(DIRTY) for commit in found))


def budget_name(budget: float) -> str:
    """The budget as a file name, exactly: 1, 0.125, 0.0625."""
    return repr(float(budget)).removesuffix(".0")


def overridden(name: str, budget: float, recipe: Recipe) -> list[str]:
    """The fields in which `recipe` is not the named one at `budget`, whatever seed and machine.

    Raises:
        ValueError: no recipe has that name.
    """
    if name not in RECIPES:
        raise ValueError(f"`name` must be that of a recipe, got {name!r}")
    return differing(recipe, scaled(RECIPES[name], budget), free=("seed", *MACHINE))


def read_records(results: Path, name: str, budget: float) -> dict[int, Record]:
    """The records of a recipe at a budget by seed, in the order of the seeds.

    Raises:
        ValueError: a file is damaged, lies in another record's place, or was made when the recipe
            had other settings.
    """
    folder = record_path(results, name, budget, 0).parent
    found = [read_record(path) for path in folder.glob("*.json")]
    for record in found:
        if record.path != record_path(results, record.name, record.budget, record.seed):
            raise ValueError(
                f"{record.path} holds the record of {record.name}, budget {record.budget:g}, "
                f"seed {record.seed}; move it there or delete it"
            )
        if changed := overridden(name, budget, record.recipe):
            raise ValueError(
                f"{record.path} was made with other settings than {name} has now "
                f"({', '.join(changed)}); delete it to have it run again"
            )
    return {record.seed: record for record in sorted(found, key=lambda record: record.seed)}


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        ValueError: it is none, or damaged.
    """
    try:
        content = read_json(path)
        record = Record(
            path=path,
            name=content["recipe"],
            budget=content["budget"],
            recipe=recipe_from_json(content["config"]),
            code=content["code"],
            environment=content["environment"],
            digest=content["data"]["digest"],
            classes=content["data"].get("classes"),
            summary=content["summary"],
            correct=unpack_correct(content["correct"]),
        )
        right = record.correct.sum().item() / len(record.correct)
        if right != record.summary["test_accuracy"]:
            raise ValueError(f"its images say {right}, its summary {record.summary}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as a run record: {error!r}") from error
    return record


def budgets(results: Path, names: Iterable[str]) -> list[str]:
    """The budgets at which any of the recipes has records, as `budget_name` writes them.

    Raises:
        ValueError: a folder of records has another name.
    """
    folders = {path.parent for name in names for path in (results / name).glob("*/*.json")}
    return sorted({_budget(folder) for folder in folders}, key=float, reverse=True)


def _budget(folder: Path) -> str:
    try:
        return budget_name(float(folder.name))
    except ValueError:
        raise ValueError(
            f"{folder} must be named by the budget of the records in it; move it out of results"
        ) from None

"""Reading recipes from a file of families, `recipes.toml` beside this module."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.train.recipe import Recipe, TrainingRecipe
from neural_similarity.nn import parse_similarity

KINDS: dict[str, type[TrainingRecipe]] = {
    "classification": Recipe,
    "adaptation": AdaptationRecipe,
    "few-shot": FewShotRecipe,
}
NOT_SETTINGS = ("text", "like", "from")


@dataclass(frozen=True)
class _Entry:
    text: str
    recipe: TrainingRecipe
    start: str = ""
    """The recipe of the run that training starts from."""


def read_families(path: Path) -> tuple[dict[str, Family], dict[str, str]]:
    """The families of a file by name, and the starts of recipes that start from another's run."""
    content = tomllib.loads(path.read_text("utf-8"))
    similarities = content.pop("similarities")
    families: dict[str, dict[str, _Entry]] = {}
    known: dict[str, _Entry] = {}
    for name, family in content.items():
        if original := family.get("copy_of"):
            prefix = content[original]["prefix"]
            families[name] = _copied_entries(family, families[original], prefix)
        else:
            families[name] = _defined_entries(family, known, similarities)
        known |= families[name]
    titled: dict[str, Family] = {
        name: (content[name]["title"], {key: (e.text, e.recipe) for key, e in entries.items()})
        for name, entries in families.items()
    }
    return titled, {key: entry.start for key, entry in known.items() if entry.start}


def _defined_entries(
    family: dict[str, Any], known: dict[str, _Entry], similarities: Mapping[str, str]
) -> dict[str, _Entry]:
    """The recipes of a family, each like one that was read before or of the family's settings."""
    kind, shared = KINDS[family.get("kind", "classification")], family.get("settings", {})
    entries: dict[str, _Entry] = {}
    for name, row in family["recipes"].items():
        settings = {key: value for key, value in row.items() if key not in NOT_SETTINGS}
        if like := row.get("like", family.get("like")):
            recipe = replace(
                (entries | known)[like].recipe, **setting_fields(settings, similarities)
            )
        else:
            recipe = kind(**setting_fields(shared | settings, similarities))
        entries[family["prefix"] + name] = _Entry(row["text"], recipe, row.get("from", ""))
    return entries


def _copied_entries(
    family: dict[str, Any], originals: Mapping[str, _Entry], prefix: str
) -> dict[str, _Entry]:
    """The recipes of another family, with that one's `prefix`, in the settings of this one."""
    entries = {}
    for name, entry in originals.items():
        method = getattr(entry.recipe, "method", "")
        settings = family["settings"] | family.get("by_method", {}).get(method, {})
        copy = family["prefix"] + name.removeprefix(prefix) + family.get("suffix", "")
        entries[copy] = replace(entry, recipe=replace(entry.recipe, **settings))
    return entries


def setting_fields(
    settings: Mapping[str, Any], similarities: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Settings as the fields of a recipe; a similarity is a text or the name of one."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    if text := fields.get("similarity"):
        fields["similarity"] = parse_similarity(similarities.get(text, text))
    return fields

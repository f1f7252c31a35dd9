"""Adaptation of pretrained networks: each way to adapt one, on each group of images.

`adaptation.toml` beside this module has the networks, the groups, the ways and their rates.
"""

import tomllib
from pathlib import Path
from typing import Any

from neural_similarity.lab.recipes.families import Family, Recipes
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe
from neural_similarity_paper.recipes.reading import setting_fields

_CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NETWORKS, _HEADS = (
    {name: setting_fields(settings) for name, settings in _CONTENT[part].items()}
    for part in ("networks", "heads")
)
RESNET, LITE = NETWORKS["resnet20"], NETWORKS["lite0"]
HEADED, CHANGED = _HEADS["new"], RESNET | _HEADS["kept"]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    way: (fields.pop("label"), fields)
    for way, settings in _CONTENT["ways"].items()
    for fields in [setting_fields(settings)]
}
"""A row's label and what it trains beside a new head; a table's first way is its baseline."""
(_, *_COLUMNS), *_ROWS = map(str.split, _CONTENT["rates"]["table"].splitlines())
RATES: dict[str, dict[str, float]] = {
    group: {way: float(rates[at]) for way, *rates in _ROWS if rates[at] != "-"}
    for at, group in enumerate(_COLUMNS)
}
"""Learning rates of the ways, by group."""
MATTER = ("head", "norm", "full", "all")
"""Ways that also run with other numbers of images."""


def way_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with defaults: no similarity, and M alone trains; a new head trains always."""
    train = fields.get("train", "M")
    if fields["classifier"] == "new":
        train = {"nothing": "head", "head": "head", "all": "all"}.get(train, f"{train}+head")
    return {"similarity": None} | fields | {"train": train}


def _group_recipes(name: str, network: str, head: str, rates: str = "", **settings: Any) -> Recipes:
    """Descriptions and recipes of a group's ways, with their own rates or another group's."""
    shared = NETWORKS[network] | _HEADS[head] | settings
    chosen = {way: RATES[rates][way] for way in MATTER} if rates else RATES[name]
    return {
        f"{name}-{way}": (label, AdaptationRecipe(lr=chosen[way], **way_fields(shared | fields)))
        for way, (label, fields) in WAYS.items()
        if way in chosen
    }


_FAMILIES = {name: entry.pop("family") for name, entry in _CONTENT["groups"].items()}
ADAPTATION_GROUPS = {n: _group_recipes(n, **entry) for n, entry in _CONTENT["groups"].items()}
"""Descriptions and recipes by name, grouped by data set, network and images per class."""


def _family_recipes(family: str) -> Recipes:
    groups = (ADAPTATION_GROUPS[group] for group in _FAMILIES if _FAMILIES[group] == family)
    return {name: entry for recipes in groups for name, entry in recipes.items()}


ADAPTATION: dict[str, Family] = {
    family: (title, _family_recipes(family)) for family, title in _CONTENT["families"].items()
}

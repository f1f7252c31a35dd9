"""Adaptation of pretrained networks: each way to adapt one, on each group of images.

`adaptation.toml` beside this module has the networks, the ways and their learning rates.
"""

import tomllib
from pathlib import Path
from typing import Any

from neural_similarity.lab.recipes.families import Family, Recipes
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe
from neural_similarity_paper.recipes.reading import setting_fields

_CONTENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
RESNET, LITE = (setting_fields(_CONTENT["networks"][name]) for name in ("resnet20", "lite0"))
HEADED: dict[str, Any] = {"classifier": "new", "channels": 3}
"""A new head, which always trains."""
CHANGED: dict[str, Any] = RESNET | {
    "inputs": "imagenet",
    "classifier": "kept",
    "channels": 3,
    "per_class": 10,
    "batch_size": 20,
    "steps": 100,
    "drops": (70,),
}
"""The classes of ResNet-20, with 10 changed images of each."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    way: (fields.pop("label"), fields)
    for way, settings in _CONTENT["ways"].items()
    for fields in [setting_fields(settings)]
}
"""A row's label and what it trains beside a new head; a table's first way is its baseline."""
(_, *_GROUPS), *_ROWS = map(str.split, _CONTENT["rates"]["table"].splitlines())
RATES: dict[str, dict[str, float]] = {
    group: {way: float(rates[at]) for way, *rates in _ROWS if rates[at] != "-"}
    for at, group in enumerate(_GROUPS)
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


def _group_recipes(name: str, rates: dict[str, float], **settings: Any) -> Recipes:
    """Descriptions and recipes of the ways that have a rate, by name."""
    return {
        f"{name}-{way}": (label, AdaptationRecipe(lr=rates[way], **way_fields(settings | fields)))
        for way, (label, fields) in WAYS.items()
        if way in rates
    }


def _groups_with_heads(name: str, network: dict[str, Any], *others: int) -> dict[str, Recipes]:
    """Recipes with 20 images per class, and with other counts at the same rates."""
    settings, rates = network | HEADED, RATES[name]
    matter = {way: rates[way] for way in MATTER}
    return {name: _group_recipes(name, rates, per_class=20, **settings)} | {
        group: _group_recipes(group, matter, per_class=each, **settings)
        for each in others
        for group in [f"{name}-{each}"]
    }


def _changed_groups(*changes: str) -> dict[str, Recipes]:
    """Recipes on changed images of CIFAR-10."""
    return {
        change: _group_recipes(change, RATES[change], dataset=f"cifar10-{change}", **CHANGED)
        for change in changes
    }


_BY_FAMILY: dict[str, tuple[str, dict[str, Recipes]]] = {
    "signs": (
        "ResNet-20 of CIFAR-10 on hand signs, 20, 5 and 160 of each",
        _groups_with_heads("signs", RESNET | {"image_size": 32}, 5, 160),
    ),
    "signs-lite0": (
        "EfficientNet-Lite0 of ImageNet on hand signs",
        _groups_with_heads("signs-lite0", LITE | {"flip": False}, 5, 160),
    ),
    "flowers": (
        "EfficientNet-Lite0 of ImageNet on twelve flowers, 20, 5 and 60 of each",
        _groups_with_heads("flowers", LITE, 5, 60),
    ),
    "noise": ("ResNet-20 of CIFAR-10 under noise", _changed_groups("noise-25", "noise-50")),
    "rotation": (
        "ResNet-20 of CIFAR-10 under rotation",
        _changed_groups("rotation-30", "rotation-90"),
    ),
}
GROUPS: dict[str, Recipes] = {
    name: recipes for _, groups in _BY_FAMILY.values() for name, recipes in groups.items()
}
"""Descriptions and recipes by name, grouped by data set, network and images per class."""
ADAPTATION: dict[str, Family] = {
    family: (title, {name: entry for each in groups.values() for name, entry in each.items()})
    for family, (title, groups) in _BY_FAMILY.items()
}

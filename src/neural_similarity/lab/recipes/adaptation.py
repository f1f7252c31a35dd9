"""Adaptation of pretrained networks; `nsim train adapt --backbone ... --data FOLDER`."""

from typing import Any

from neural_similarity.lab.recipes.families import Family, Recipes
from neural_similarity.lab.tasks.adaptation import STATIC_FULL, AdaptationRecipe
from neural_similarity.nn import Affine, Diagonal, Dynamic, Static

RESNET: dict[str, Any] = {
    "backbone": "data/pretrained-cifar10/resnet20.pt",
    "model": "resnet20",
    "flip": False,
}
"""ResNet-20 of CIFAR-10."""
LITE: dict[str, Any] = {
    "backbone": "timm:tf_efficientnet_lite0",
    "weights": "data/pretrained-imagenet/tf_efficientnet_lite0.safetensors",
    "image_size": 128,
    "batch_size": 24,
    "steps": 100,
    "drops": (70,),
}
"""EfficientNet-Lite0 of ImageNet."""
HEADED: dict[str, Any] = {"classifier": "new", "channels": 3}
"""A new head, which always trains."""
CHANGED: dict[str, Any] = {
    "inputs": "imagenet",
    "classifier": "kept",
    "channels": 3,
    "per_class": 10,
    "batch_size": 20,
    "steps": 100,
    "drops": (70,),
}
"""The network's own classes, with 10 changed images of each."""

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("as it is", {"train": "nothing", "steps": 1, "drops": ()}),
    "head": ("linear probe", {"train": "head"}),
    "statistics": ("running statistics of normalisation", {"train": "nothing", "norm": "train"}),
    "norm": ("gains and shifts of batch normalisation", {"train": "norm"}),
    "bias": ("biases (BitFit)", {"train": "bias"}),
    "ssf": ("scale and shift of filters (SSF)", {"train": "baseline", "baseline": "ssf"}),
    "lora": ("LoRA of rank 1 (PEFT)", {"train": "baseline", "baseline": "lora"}),
    "oft": ("diag-OFT in blocks of 4 (LyCORIS)", {"train": "baseline", "baseline": "oft"}),
    **{
        way: (label, {"train": "baseline", "baseline": way})
        for way, label in {
            "film": "scale and shift of normalised channels (FiLM)",
            "lora-c": "LoRA-C of rank 1",
            "lora-c4": "LoRA-C of rank 4",
            "atoms": "six filter atoms",
            "residual": "residual 1×1 adapters (TSA)",
            "residual-vector": "residual adapters by channel (TSA)",
            "conv-adapter": "Conv-Adapter",
        }.items()
    },
    "diagonal": ("static diagonal M", {"similarity": Static(Diagonal())}),
    "diagonal-norm": (
        "static diagonal M and normalisation",
        {"similarity": Static(Diagonal()), "train": "M+norm"},
    ),
    "full": ("static full M", {"similarity": STATIC_FULL}),
    "full-norm": (
        "static full M and normalisation",
        {"similarity": STATIC_FULL, "train": "M+norm"},
    ),
    "affine": ("M by angle, scale, shear, shift", {"similarity": Static(Affine())}),
    "dynamic": ("dynamic diagonal M", {"similarity": Dynamic(Diagonal())}),
    "angle": ("M by one angle", {"similarity": Static(Affine("angle", tied=True))}),
    "turn": ("turning the images", {"train": "baseline", "baseline": "turn"}),
    "all": ("full fine-tuning", {"train": "all"}),
}
MOVING = ("norm", "lora", "oft", "full")
"""Ways that also run with running statistics updated on the new images. SSF does not: normalising
by the batch would undo its scales and shifts, which then have no gradient."""
WAYS |= {
    f"{way}-statistics": (f"{WAYS[way][0]}, running statistics", WAYS[way][1] | {"norm": "train"})
    for way in MOVING
}
"""A row's label and what it trains beside a new head; a table's first way is its baseline."""

# Learning rates: the best in docs/results-adaptation.md on held-out training images at seed 0, or
# another group's where the page says so.
SIGNS = {
    "head": 1.0,
    "statistics": 0.3,
    "norm": 0.03,
    "bias": 0.03,
    "ssf": 0.1,
    "lora": 0.03,
    "oft": 0.01,
    "diagonal": 0.1,
    "diagonal-norm": 0.03,
    "full": 0.03,
    "full-norm": 0.01,
    "affine": 0.03,
    "dynamic": 0.03,
    "all": 0.3,
}
FLOWERS = {
    "head": 0.1,
    "statistics": 0.1,
    "norm": 0.01,
    "bias": 0.03,
    "ssf": 0.01,
    "oft": 0.003,
    "diagonal": 0.01,
    "full": 0.003,
    "full-norm": 0.003,
    "dynamic": 0.003,
    "all": 0.01,
}
LITE_SIGNS = FLOWERS | {"head": 0.3, "statistics": 0.3, "ssf": 0.03, "all": 0.03}
NOISE_25 = {
    "nothing": 1.0,
    "head": 0.03,
    "statistics": 1.0,
    "norm": 0.01,
    "bias": 0.01,
    "ssf": 0.03,
    "lora": 0.03,
    "oft": 0.003,
    "diagonal": 0.01,
    "full": 0.003,
    "dynamic": 0.003,
    "norm-statistics": 0.003,
    "lora-statistics": 0.03,
    "oft-statistics": 0.001,
    "full-statistics": 0.003,
    "all": 0.003,
}
ROTATION_30 = NOISE_25 | {
    "ssf": 0.003,
    "oft": 0.001,
    "full": 0.01,
    "angle": 0.0003,
    "turn": 0.001,
}
NOISE_50 = {
    "nothing": 1.0,
    "head": 0.03,
    "statistics": 1.0,
    "norm": 0.01,
    "full": 0.001,
    "norm-statistics": 0.01,
    "full-statistics": 0.001,
    "all": 0.001,
}
ROTATION_90 = {
    "nothing": 1.0,
    "head": 0.01,
    "statistics": 1.0,
    "norm": 0.01,
    "full": 0.003,
    "angle": 0.0003,
    "turn": 0.001,
    "norm-statistics": 0.01,
    "full-statistics": 0.001,
    "all": 0.01,
}
CHANGES = {
    "noise-25": NOISE_25,
    "noise-50": NOISE_50,
    "rotation-30": ROTATION_30,
    "rotation-90": ROTATION_90,
}
MATTER = ("head", "norm", "full", "all")
"""Ways that also run with other numbers of images."""


def _recipes_of_group(group: str, rates: dict[str, float], settings: dict[str, Any]) -> Recipes:
    """Descriptions and recipes of the ways that have a rate, by name."""
    return {
        f"{group}-{way}": (
            label,
            AdaptationRecipe(lr=rates[way], **_recipe_fields(settings | fields)),
        )
        for way, (label, fields) in WAYS.items()
        if way in rates
    }


def _recipe_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with defaults: no similarity, and M alone trains; a new head trains always."""
    train = fields.get("train", "M")
    if fields["classifier"] == "new":
        train = {"nothing": "head", "head": "head", "all": "all"}.get(train, f"{train}+head")
    return {"similarity": None} | fields | {"train": train}


def _group_with_heads(
    name: str, network: dict[str, Any], rates: dict[str, float], *others: int
) -> dict[str, Recipes]:
    """Recipes with 20 images per class, and with other counts at the same rates."""
    matter = {way: rates[way] for way in MATTER}
    settings = network | HEADED
    return {name: _recipes_of_group(name, rates, settings | {"per_class": 20})} | {
        f"{name}-{each}": _recipes_of_group(
            f"{name}-{each}", matter, settings | {"per_class": each}
        )
        for each in others
    }


def _recipes_of_change(change: str, rates: dict[str, float]) -> Recipes:
    return _recipes_of_group(change, rates, RESNET | CHANGED | {"dataset": f"cifar10-{change}"})


GROUPS: dict[str, Recipes] = {
    **_group_with_heads("signs", RESNET | {"image_size": 32}, SIGNS, 5, 160),
    **_group_with_heads("signs-lite0", LITE | {"flip": False}, LITE_SIGNS, 5, 160),
    **_group_with_heads("flowers", LITE, FLOWERS, 5, 60),
    **{change: _recipes_of_change(change, rates) for change, rates in CHANGES.items()},
}
"""Descriptions and recipes by name, grouped by data set, network and images per class."""

ADAPT = {"adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe())}


def _joined(*groups: str) -> Recipes:
    return {name: entry for group in groups for name, entry in GROUPS[group].items()}


ADAPTATION: dict[str, Family] = {
    "adapt": ("adaptation of a pretrained network to images of yours", ADAPT),
    "signs": (
        "ResNet-20 of CIFAR-10 on hand signs, 20, 5 and 160 of each",
        _joined("signs", "signs-5", "signs-160"),
    ),
    "signs-lite0": (
        "EfficientNet-Lite0 of ImageNet on hand signs",
        _joined("signs-lite0", "signs-lite0-5", "signs-lite0-160"),
    ),
    "flowers": (
        "EfficientNet-Lite0 of ImageNet on twelve flowers, 20, 5 and 60 of each",
        _joined("flowers", "flowers-5", "flowers-60"),
    ),
    "noise": ("ResNet-20 of CIFAR-10 under noise", _joined("noise-25", "noise-50")),
    "rotation": ("ResNet-20 of CIFAR-10 under rotation", _joined("rotation-30", "rotation-90")),
}

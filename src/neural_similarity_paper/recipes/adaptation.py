"""Adaptation of pretrained networks; `nsim train adapt --backbone ... --data FOLDER`."""

from typing import Any

from neural_similarity.lab.recipes.families import Family, Recipes
from neural_similarity.lab.tasks.adaptation_recipe import STATIC_FULL, AdaptationRecipe
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
DIAGONAL, FULL = {"similarity": Static(Diagonal())}, {"similarity": STATIC_FULL}

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
            "piggyback": "masks of the kernels (Piggyback)",
        }.items()
    },
    "diagonal": ("static diagonal M", DIAGONAL),
    "diagonal-norm": ("static diagonal M and normalisation", DIAGONAL | {"train": "M+norm"}),
    "full": ("static full M", FULL),
    "full-default": ("static full M, rate by curvature", FULL),
    "full-norm": ("static full M and normalisation", FULL | {"train": "M+norm"}),
    "affine": ("M by angle, scale, shear, shift", {"similarity": Static(Affine())}),
    "dynamic": ("dynamic diagonal M", {"similarity": Dynamic(Diagonal())}),
    "angle": ("M by one angle", {"similarity": Static(Affine("angle", tied=True))}),
    "turn": ("turning the images", {"train": "baseline", "baseline": "turn"}),
    "all": ("full fine-tuning", {"train": "all"}),
    "full-all": ("static full M and all weights", FULL | {"train": "M+all"}),
    "full-then-all": ("static full M, then all weights", FULL),
    # What these train is added by `studies.adapt_kin`.
    "tsa": ("TSA: residual adapters, aligned features", {"train": "nothing"}),
    "full-tsa": ("static full M and TSA", FULL),
    "atoms-9": ("nine filter atoms, sparse codes", {"train": "nothing"}),
    "undone": (
        "image changed back, network as it is",
        {"train": "nothing", "steps": 1, "drops": ()},
    ),
}
MOVING = ("norm", "lora", "oft", "full")
"""Ways that also run with running statistics updated on the new images. SSF does not: normalising
by the batch would undo its scales and shifts, which then have no gradient."""
WAYS |= {
    f"{way}-statistics": (f"{WAYS[way][0]}, running statistics", WAYS[way][1] | {"norm": "train"})
    for way in MOVING
}
"""A row's label and what it trains beside a new head; a table's first way is its baseline."""

# The best in docs/evidence/results-adaptation.md on held-out training images at seed 0, or
# another group's where the page says so.
_RATES = """\
way             signs       signs-lite0 flowers     noise-25    noise-50    rotation-30 rotation-90
nothing         -           -           -           1.0         1.0         1.0         1.0
head            1.0         0.3         0.1         0.03        0.03        0.03        0.01
statistics      0.3         0.3         0.1         1.0         1.0         1.0         1.0
norm            0.03        0.01        0.01        0.01        0.01        0.01        0.01
bias            0.03        0.03        0.03        0.01        -           0.01        -
ssf             0.1         0.03        0.01        0.03        -           0.003       -
lora            0.03        -           -           0.03        -           0.03        -
oft             0.01        0.003       0.003       0.003       -           0.001       -
diagonal        0.1         0.01        0.01        0.01        -           0.01        -
diagonal-norm   0.03        -           -           -           -           -           -
full            0.03        0.003       0.003       0.003       0.001       0.01        0.003
full-norm       0.01        0.003       0.003       -           -           -           -
affine          0.03        -           -           -           -           -           -
dynamic         0.03        0.003       0.003       0.003       -           0.003       -
angle           -           -           -           -           -           0.0003      0.0003
turn            -           -           -           -           -           0.001       0.001
all             0.3         0.03        0.01        0.003       0.001       0.003       0.01
norm-statistics -           -           -           0.003       0.01        0.003       0.01
lora-statistics -           -           -           0.03        -           0.03        -
oft-statistics  -           -           -           0.001       -           0.001       -
full-statistics -           -           -           0.003       0.001       0.003       0.001
"""
(_, *_NAMES), *_ROWS = map(str.split, _RATES.splitlines())
RATES: dict[str, dict[str, float]] = {
    group: {way: float(rates[i]) for way, *rates in _ROWS if rates[i] != "-"}
    for i, group in enumerate(_NAMES)
}
"""Learning rates of the ways, by group."""
MATTER = ("head", "norm", "full", "all")
"""Ways that also run with other numbers of images."""


def _recipes_of_group(name: str, rates: dict[str, float], **settings: Any) -> Recipes:
    """Descriptions and recipes of the ways that have a rate, by name."""
    return {
        f"{name}-{way}": (label, AdaptationRecipe(lr=rates[way], **way_fields(settings | fields)))
        for way, (label, fields) in WAYS.items()
        if way in rates
    }


def way_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with defaults: no similarity, and M alone trains; a new head trains always."""
    train = fields.get("train", "M")
    if fields["classifier"] == "new":
        train = {"nothing": "head", "head": "head", "all": "all"}.get(train, f"{train}+head")
    return {"similarity": None} | fields | {"train": train}


def _group_with_heads(name: str, network: dict[str, Any], *others: int) -> dict[str, Recipes]:
    """Recipes with 20 images per class, and with other counts at the same rates."""
    settings, rates = network | HEADED, RATES[name]
    matter = {way: rates[way] for way in MATTER}
    return {name: _recipes_of_group(name, rates, per_class=20, **settings)} | {
        group: _recipes_of_group(group, matter, per_class=each, **settings)
        for each in others
        for group in [f"{name}-{each}"]
    }


GROUPS: dict[str, Recipes] = {
    **_group_with_heads("signs", RESNET | {"image_size": 32}, 5, 160),
    **_group_with_heads("signs-lite0", LITE | {"flip": False}, 5, 160),
    **_group_with_heads("flowers", LITE, 5, 60),
    **{
        change: _recipes_of_group(change, RATES[change], dataset=f"cifar10-{change}", **CHANGED)
        for change in ("noise-25", "noise-50", "rotation-30", "rotation-90")
    },
}
"""Descriptions and recipes by name, grouped by data set, network and images per class."""


def _family(title: str, *groups: str) -> Family:
    return title, {name: entry for group in groups for name, entry in GROUPS[group].items()}


ADAPTATION: dict[str, Family] = {
    "signs": _family(
        "ResNet-20 of CIFAR-10 on hand signs, 20, 5 and 160 of each",
        *("signs", "signs-5", "signs-160"),
    ),
    "signs-lite0": _family(
        "EfficientNet-Lite0 of ImageNet on hand signs",
        *("signs-lite0", "signs-lite0-5", "signs-lite0-160"),
    ),
    "flowers": _family(
        "EfficientNet-Lite0 of ImageNet on twelve flowers, 20, 5 and 60 of each",
        *("flowers", "flowers-5", "flowers-60"),
    ),
    "noise": _family("ResNet-20 of CIFAR-10 under noise", "noise-25", "noise-50"),
    "rotation": _family("ResNet-20 of CIFAR-10 under rotation", "rotation-30", "rotation-90"),
}

"""Adaptation of pretrained networks; `nsim train adapt --backbone ... --data FOLDER`."""

from typing import Any

from neural_similarity.lab.tasks.adaptation import STATIC_FULL, AdaptationRecipe
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Affine, Diagonal, Dynamic, Static

SIGNS: dict[str, Any] = {
    "backbone": "data/pretrained-cifar10/resnet20.pt",
    "model": "resnet20",
    "image_size": 32,
    "flip": False,
}
"""ResNet-20 of CIFAR-10 on ten hand signs."""
FLOWERS: dict[str, Any] = {
    "backbone": "timm:tf_efficientnet_lite0",
    "weights": "data/pretrained-imagenet/tf_efficientnet_lite0.safetensors",
    "image_size": 128,
    "batch_size": 24,
    "steps": 100,
    "drops": (70,),
}
"""EfficientNet-Lite0 of ImageNet on twelve flowers."""
# Rates for signs and flowers: the best of those in docs/results.md on training images that are held
# out, a quarter of 20 of each class, seed 0; None is not run.
HEADED: dict[str, tuple[str, tuple[float | None, float | None], dict[str, Any]]] = {
    "head": ("linear probe", (1.0, 0.1), {"train": "head"}),
    "norm": (
        "gains and shifts of batch normalisation",
        (0.03, 0.01),
        {"train": "norm+head"},
    ),
    "diagonal": ("static diagonal M", (0.1, 0.01), {"similarity": Static(Diagonal())}),
    "full": ("static full M", (0.03, 0.003), {"similarity": STATIC_FULL}),
    "affine": (
        "M by angle, scale, shear, shift",
        (0.03, None),
        {"similarity": Static(Affine())},
    ),
    "full-norm": (
        "static full M and normalisation",
        (0.01, 0.003),
        {"similarity": STATIC_FULL, "train": "M+norm+head"},
    ),
    "dynamic": ("dynamic diagonal M", (0.03, None), {"similarity": Dynamic(Diagonal())}),
    "statistics": (
        "running statistics of normalisation",
        (0.3, 0.1),
        {"train": "head", "norm": "train"},
    ),
    "bias": ("biases (BitFit)", (0.03, 0.03), {"train": "bias+head"}),
    "ssf": (
        "scale and shift of filters (SSF)",
        (0.1, 0.01),
        {"train": "rival+head", "rival": "ssf"},
    ),
    "lora": ("LoRA of rank 1 (PEFT)", (0.03, None), {"train": "rival+head", "rival": "lora"}),
    "oft": (
        "diag-OFT in blocks of 4 (LyCORIS)",
        (0.01, 0.003),
        {"train": "rival+head", "rival": "oft"},
    ),
    "all": ("full fine-tuning", (0.3, 0.01), {"train": "all"}),
}


MATTER = ("head", "norm", "full", "all")
"""Ways that are tried with other numbers of images, too."""


def _headed(
    name: str, images: dict[str, Any], each: int, ways: tuple[str, ...] = tuple(HEADED)
) -> dict[str, tuple[str, Recipe]]:
    """A new head and what else trains, on some images of each class."""
    recipes: dict[str, tuple[str, Recipe]] = {}
    for way in ways:
        label, rates, fields = HEADED[way]
        lr = rates[images is FLOWERS]
        settings = {"train": "M+head", "similarity": None} | images | fields
        if lr is not None:
            recipe = AdaptationRecipe(
                classifier="new", channels=3, per_class=each, lr=lr, **settings
            )
            recipes[f"{name}-{way}"] = label, recipe
    return recipes


NEW_CLASSES: dict[str, dict[str, tuple[str, Recipe]]] = {
    "signs": _headed("signs", SIGNS, 20),
    "signs-5": _headed("signs-5", SIGNS, 5, MATTER),
    "signs-160": _headed("signs-160", SIGNS, 160, MATTER),
    "flowers": _headed("flowers", FLOWERS, 20),
    "flowers-5": _headed("flowers-5", FLOWERS, 5, MATTER),
    "flowers-60": _headed("flowers-60", FLOWERS, 60, MATTER),
}
"""Descriptions and recipes by name, by images and how many of each class."""

CHANGES = {
    "noise-25": "noise of deviation 25",
    "noise-50": "noise of deviation 50",
    "rotation-30": "a turn by 30°",
    "rotation-90": "a turn by 90°",
}
"""Of CIFAR-10, by the name of its data set."""


def _changed(change: str, train: str, lr: float, **fields: Any) -> AdaptationRecipe:
    """ResNet-20 of CIFAR-10, with its classifier, on 10 changed images of each class."""
    settings: dict[str, Any] = {"similarity": None, "steps": 100, "drops": (70,)} | fields
    return AdaptationRecipe(
        dataset=f"cifar10-{change}",
        backbone="data/pretrained-cifar10/resnet20.pt",
        model="resnet20",
        inputs="imagenet",
        classifier="kept",
        channels=3,
        per_class=10,
        batch_size=20,
        flip=False,
        train=train,
        lr=lr,
        **settings,
    )


# Rates for noise and turn: the best of those in docs/results.md on 500 training images that are
# held out beside the 100, seed 0; head, biases and LoRA by noise alone.
WAYS: dict[str, tuple[str, tuple[float, ...], dict[str, Any]]] = {
    "nothing": ("as it is", (1.0, 1.0), {"train": "nothing", "steps": 1, "drops": ()}),
    "statistics": ("running statistics", (1.0, 1.0), {"train": "nothing", "norm": "train"}),
    "head": ("linear probe", (0.03, 0.03), {"train": "head"}),
    "norm": ("gains and shifts of batch normalisation", (0.01, 0.01), {"train": "norm"}),
    "bias": ("biases (BitFit)", (0.01, 0.01), {"train": "bias"}),
    "ssf": ("scale and shift of filters (SSF)", (0.03, 0.003), {"train": "rival", "rival": "ssf"}),
    "lora": ("LoRA of rank 1 (PEFT)", (0.03, 0.03), {"train": "rival", "rival": "lora"}),
    "oft": (
        "diag-OFT in blocks of 4 (LyCORIS)",
        (0.003, 0.001),
        {"train": "rival", "rival": "oft"},
    ),
    "diagonal": ("static diagonal M", (0.01, 0.01), {"similarity": Static(Diagonal())}),
    "full": ("static full M", (0.003, 0.01), {"similarity": STATIC_FULL}),
    "dynamic": ("dynamic diagonal M", (0.003, 0.003), {"similarity": Dynamic(Diagonal())}),
    "angle": ("M by one angle", (0.0003,) * 2, {"similarity": Static(Affine("angle", tied=True))}),
    "turn": ("turning the images", (0.001, 0.001), {"train": "rival", "rival": "turn"}),
    "all": ("full fine-tuning", (0.003, 0.003), {"train": "all"}),
}
TURNS = ("angle", "turn")
"""Ways that are for turned images alone."""
STRONGER = ("nothing", "statistics", "head", "norm", "full", "all", *TURNS)
"""Ways that are tried on the stronger changes, too, at the rates of the weaker ones."""


def _ways(change: str) -> dict[str, tuple[str, Recipe]]:
    """Descriptions and recipes of the ways to adapt to a change, by name."""
    turned = change.startswith("rotation")
    ways = WAYS if change in ("noise-25", "rotation-30") else {way: WAYS[way] for way in STRONGER}
    return {
        f"{change}-{way}": (label, _changed(change, **{"train": "M", "lr": rates[turned]} | fields))
        for way, (label, rates, fields) in ways.items()
        if turned or way not in TURNS
    }


CHANGED = {change: _ways(change) for change in CHANGES}
"""Descriptions and recipes by name, by change."""

ADAPTATION: dict[str, tuple[str, Recipe]] = {
    "adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe()),
    **{
        name: entry
        for by in (NEW_CLASSES, CHANGED)
        for group in by.values()
        for name, entry in group.items()
    },
}

"""Adaptation of pretrained networks; `nsim train adapt --backbone ... --data FOLDER`."""

from typing import Any

from neural_similarity.lab.tasks.adaptation import STATIC_FULL, AdaptationRecipe
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import Affine, Diagonal, Dynamic, Static


def _signs(train: str, lr: float, similarity: Any = None, **fields: Any) -> AdaptationRecipe:
    """ResNet-20 of CIFAR-10 on 20 images of each of ten hand signs."""
    return AdaptationRecipe(
        backbone="data/pretrained-cifar10/resnet20.pt",
        model="resnet20",
        classifier="new",
        image_size=32,
        channels=3,
        per_class=20,
        flip=False,
        similarity=similarity,
        train=train,
        lr=lr,
        **fields,
    )


# Rates: the best of 0.003, 0.01, 0.03, 0.1, 0.3, 1, or of three where the middle one was best, on
# 50 of the 200 training images held out, seed 0 (docs/results.md).
SIGNS: dict[str, tuple[str, Recipe]] = {
    "signs-head": ("linear probe", _signs("head", 1.0)),
    "signs-norm": ("gains and shifts of batch normalisation", _signs("norm+head", 0.03)),
    "signs-diagonal": ("static diagonal M", _signs("M+head", 0.1, Static(Diagonal()))),
    "signs-full": ("static full M", _signs("M+head", 0.03, STATIC_FULL)),
    "signs-affine": ("M by angle, scale, shear, shift", _signs("M+head", 0.03, Static(Affine()))),
    "signs-full-norm": (
        "static full M and normalisation",
        _signs("M+norm+head", 0.01, STATIC_FULL),
    ),
    "signs-dynamic": ("dynamic diagonal M", _signs("M+head", 0.03, Dynamic(Diagonal()))),
    "signs-statistics": (
        "running statistics of normalisation",
        _signs("head", 0.3, norm="train"),
    ),
    "signs-bias": ("biases (BitFit)", _signs("bias+head", 0.03)),
    "signs-ssf": ("scale and shift of filters (SSF)", _signs("rival+head", 0.1, rival="ssf")),
    "signs-lora": ("LoRA of rank 1 (PEFT)", _signs("rival+head", 0.03, rival="lora")),
    "signs-oft": ("diag-OFT (LyCORIS)", _signs("rival+head", 0.01, rival="oft")),
    "signs-all": ("full fine-tuning", _signs("all", 0.3)),
}

CHANGES = {"noise-25": "noise of deviation 25", "rotation-30": "a turn by 30°"}
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
CHANGED: dict[str, dict[str, tuple[str, Recipe]]] = {
    change: {
        f"{change}-{way}": (label, _changed(change, **{"train": "M", "lr": rates[at]} | fields))
        for way, (label, rates, fields) in WAYS.items()
        if change.startswith("rotation") or way not in TURNS
    }
    for at, change in enumerate(CHANGES)
}
"""Descriptions and recipes by name, by change."""

ADAPTATION: dict[str, tuple[str, Recipe]] = {
    "adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe()),
    **SIGNS,
    **{name: entry for group in CHANGED.values() for name, entry in group.items()},
}

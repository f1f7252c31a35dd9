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

ADAPTATION: dict[str, tuple[str, Recipe]] = {
    "adapt": ("a pretrained network, --backbone, on images of yours", AdaptationRecipe()),
    **SIGNS,
}

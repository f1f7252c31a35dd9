"""What the paper leaves open, on CIFAR-10: ablations, cheaper predictors, baselines."""

from dataclasses import replace
from functools import partial

from neural_similarity.lab.recipes.cifar import BASE, PREDICTOR
from neural_similarity.lab.recipes.families import Family
from neural_similarity.lab.recipes.released import PATCHES
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.nn import (
    CNN,
    Diagonal,
    Dynamic,
    Full,
    Masked,
    Pooled,
    Predictor,
    SphereNet,
    Static,
    Unshared,
)


def _dynamic_diagonal(predictor: Predictor) -> Recipe:
    return replace(BASE, similarity=Dynamic(Diagonal(), predictor=predictor))


def _normalised_predictor(eps: float) -> Recipe:
    """The released predictor's normalisation with another eps."""
    predictor = replace(PATCHES, batch_norm=True, batch_norm_eps=eps)
    return replace(BASE, similarity=Dynamic(Diagonal(), predictor=predictor, init="released"))


ABLATIONS = {
    "cifar10-static-dns-eye": (
        "M starts at eye(3) flattened, as in the released code",
        replace(BASE, similarity=Static(Diagonal(), init="released")),
    ),
    "cifar10-dynamic-dns-plain": (
        "no batch normalisation in predictors",
        _dynamic_diagonal(SphereNet()),
    ),
    "cifar10-dynamic-dns-unit": (
        "predictors of patches over their norm, not batch-normalised",
        _dynamic_diagonal(SphereNet(normalize="input")),
    ),
    "cifar10-dynamic-dns-unit-norm": (
        "batch-normalised predictors of patches over their norm",
        _dynamic_diagonal(SphereNet(normalize="input", batch_norm=True, scales=(1.0, 1.0))),
    ),
    "cifar10-dynamic-dns-norm": (
        "the released predictors: the same, small start, no gains",
        _normalised_predictor(1e-3),
    ),
    "cifar10-dynamic-dns-norm-1e-5": (
        "the same with PyTorch's eps 1e-5",
        _normalised_predictor(1e-5),
    ),
    "cifar10-dynamic-dns-both": (
        "predictor bounded, patches and kernels normalised",
        _dynamic_diagonal(SphereNet(normalize="both", bounded=True)),
    ),
    "cifar10-dynamic-uns-no-gains": (
        "the prediction is added to I as it is, so that M starts as noise about I",
        replace(BASE, similarity=Dynamic(Full(), PREDICTOR, init="released")),
    ),
    "cifar10-dynamic-uns-no-identity": (
        "the same without I: the prediction is M, as in App. A",
        replace(BASE, similarity=Dynamic(Full(residual=False), PREDICTOR, init="released")),
    ),
    "cifar10-cnn-raw": ("pixels 0 to 255", replace(BASE, inputs="raw")),
    "cifar10-cnn-zero": ("zeros around the crops", replace(BASE, padding="zero")),
    "cifar10-cnn-smooth": ("targets smoothed by 0.01", replace(BASE, label_smoothing=0.01)),
}

SHARING = {
    "cifar10-static-dns-by-filter": (
        "a learned diagonal matrix for each filter",
        replace(BASE, similarity=Static(Unshared(Diagonal(), filters="each"))),
    ),
    "cifar10-static-uns-by-filter": (
        "a learned full matrix for each filter",
        replace(BASE, similarity=Static(Unshared(Full(), filters="each"))),
    ),
}

SHAPES = {
    f"cifar10-{kind}-dns-j-rate{rate}": (
        f"{kind}, a learned shape whose D_r learns {rate} times as fast",
        replace(BASE, similarity=similarity(Masked(Diagonal(), rate=float(rate)))),
    )
    for kind, similarity in {
        "static": Static,
        "dynamic": partial(Dynamic, predictor=PREDICTOR),
    }.items()
    for rate in (10, 100)
}

BOUNDS = {
    "cifar10-dynamic-dns-cnn-unbounded": (
        "a plain CNN as predictor",
        _dynamic_diagonal(CNN(bound=None)),
    ),
    "cifar10-dynamic-dns-cnn-tanh": (
        "the same, bounded by tanh",
        _dynamic_diagonal(CNN(bound="tanh")),
    ),
    "cifar10-dynamic-dns-cnn-sigmoid": ("by a sigmoid", _dynamic_diagonal(CNN(bound="sigmoid"))),
    "cifar10-dynamic-dns-cnn-normalized": (
        "of length 1",
        _dynamic_diagonal(CNN(bound="normalize")),
    ),
}

CHEAPER = {
    "cifar10-dynamic-dns-half-width": (
        "32 hidden units",
        _dynamic_diagonal(replace(PREDICTOR, hidden=32)),
    ),
    "cifar10-dynamic-dns-half-resolution": (
        "M at every second row and column, interpolated",
        _dynamic_diagonal(replace(PREDICTOR, resolution=2)),
    ),
    "cifar10-dynamic-dns-1x1": (
        "the second layer 1×1",
        _dynamic_diagonal(replace(PREDICTOR, last_kernel_size=1)),
    ),
}

# Factors on the filters: with MACS the plain network has 0.997 of the multiplications of dynamic
# DNS (`models.counts.macs`); with SLOW 0.98 of the time of its training step
# (`python -m benchmarks recipes --dtype fp32 --threads 1`: 128 images, a CPU without AMX).
MACS, SLOW = 1.5625, 1.8125
CONTROLS = {
    "cifar10-cnn-macs": (
        "plain, with as many multiplications as dynamic DNS",
        replace(BASE, width=MACS),
    ),
    "cifar10-cnn-time": ("plain, about as slow as dynamic DNS on a CPU", replace(BASE, width=SLOW)),
}

BASELINES = {
    "cifar10-dynamic-dns-per-image": (
        "one diagonal matrix an image",
        _dynamic_diagonal(replace(PREDICTOR, per_image=True)),
    ),
    "cifar10-pooled": (
        "one full matrix an image, from the averages of a layer's input",
        replace(BASE, similarity=Dynamic(Full(), Pooled())),
    ),
    "cifar10-pooled-diagonal": (
        "one diagonal matrix an image, from the averages",
        replace(BASE, similarity=Dynamic(Diagonal(), Pooled())),
    ),
    "cifar10-condconv": ("every image mixes 4 kernels", replace(BASE, model="cnn9_condconv")),
    "cifar10-dynamic-filter": (
        "every image's kernel is generated",
        replace(BASE, model="cnn9_dynamic_filter"),
    ),
    "cifar10-deformable": (
        "modulated deformable convolutions",
        replace(BASE, model="cnn9_deformable"),
    ),
}

STUDIES: dict[str, Family] = {
    "ablations": ("where the paper and the released code differ", ABLATIONS),
    "sharing": ("M for each filter", SHARING),
    "shapes": ("kernel shapes that learn faster", SHAPES),
    "bounds": ("CNN predictors without batch normalisation", BOUNDS),
    "cheaper": ("cheaper predictors", CHEAPER),
    "controls": ("plain networks as dear as dynamic similarity", CONTROLS),
    "baselines": ("other kernels that depend on the image", BASELINES),
}

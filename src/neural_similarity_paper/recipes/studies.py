"""What the paper leaves open, on CIFAR-10: ablations, cheaper predictors, baselines."""

from dataclasses import replace
from functools import partial

from neural_similarity.lab.recipes.families import Family, named
from neural_similarity.lab.train.recipe import scale_recipe
from neural_similarity.nn import (
    CNN,
    Diagonal,
    Dynamic,
    Full,
    Light,
    LowRank,
    Masked,
    Pooled,
    PositiveSemidefinite,
    Sparse,
    SphereNet,
    Static,
    Symmetric,
    Unshared,
    Unstructured,
)
from neural_similarity_paper.recipes.cifar import BASE, PREDICTOR, dynamic_recipe, with_similarity
from neural_similarity_paper.recipes.released import PATCHES

diagonal = partial(dynamic_recipe, Diagonal())
RELEASED_START = partial(Dynamic, init="released")
SMALL_PATCH = replace(PATCHES, batch_norm=True)
"""The released predictor, normalised with PyTorch's eps."""

ABLATION_RECIPES = named(
    "cifar10-",
    {
        "static-dns-eye": (
            "M starts at eye(3) flattened, as in the released code",
            with_similarity(Static(Diagonal(), init="released")),
        ),
        "dynamic-dns-plain": ("no batch normalisation in predictors", diagonal(SphereNet())),
        "dynamic-dns-unit": (
            "predictors of patches over their norm, not batch-normalised",
            diagonal(SphereNet(normalize="input")),
        ),
        "dynamic-dns-unit-norm": (
            "batch-normalised predictors of patches over their norm",
            diagonal(SphereNet(normalize="input", batch_norm=True, scales=(1.0, 1.0))),
        ),
        "dynamic-dns-norm": (
            "the released predictors: the same, small start, no gains",
            with_similarity(RELEASED_START(Diagonal(), replace(SMALL_PATCH, batch_norm_eps=1e-3))),
        ),
        "dynamic-dns-norm-1e-5": (
            "the same with PyTorch's eps 1e-5",
            with_similarity(RELEASED_START(Diagonal(), replace(SMALL_PATCH, batch_norm_eps=1e-5))),
        ),
        "dynamic-dns-both": (
            "predictor bounded, patches and kernels normalised",
            diagonal(SphereNet(normalize="both", bounded=True)),
        ),
        "dynamic-uns-no-gains": (
            "the prediction is added to I as it is, so that M starts as noise about I",
            with_similarity(RELEASED_START(Full(), PREDICTOR)),
        ),
        "dynamic-uns-no-identity": (
            "the same without I: the prediction is M, as in App. A",
            with_similarity(RELEASED_START(Full(residual=False), PREDICTOR)),
        ),
        "cnn-raw": ("pixels 0 to 255", replace(BASE, inputs="raw")),
        "cnn-zero": ("zeros around the crops", replace(BASE, padding="zero")),
        "cnn-smooth": ("targets smoothed by 0.01", replace(BASE, label_smoothing=0.01)),
    },
)
SHARING_RECIPES = {
    f"cifar10-static-{name}-by-filter": (
        f"a learned {kind} matrix for each filter",
        with_similarity(Static(Unshared(structure, filters="each"))),
    )
    for name, kind, structure in (("dns", "diagonal", Diagonal()), ("uns", "full", Full()))
}
STRUCTURE_RECIPES = {
    f"cifar10-static-{name}": (f"M {text}, §3.4", replace(BASE, **settings))
    for name, text, settings in (
        ("symmetric", "symmetric", {"similarity": Static(Symmetric())}),
        ("psd", "positive semi-definite", {"similarity": Static(PositiveSemidefinite())}),
        ("sparse", "of nine entries a layer", {"similarity": Static(Sparse(keep=9))}),
        ("l1", "under an L1 penalty", {"similarity": Static(Full()), "penalty": 1e-4}),
        ("unstructured", "over channels and taps", {"similarity": Static(Unstructured())}),
    )
}
SHAPE_RECIPES = {
    f"cifar10-{kind}-dns-j-rate{rate}": (
        f"{kind}, a learned shape whose D_r learns {rate} times as fast",
        with_similarity(similarity(Masked(Diagonal(), rate=float(rate)))),
    )
    for kind, similarity in {
        "static": Static,
        "dynamic": partial(Dynamic, predictor=PREDICTOR),
    }.items()
    for rate in (10, 100)
}
BOUND_RECIPES = named(
    "cifar10-dynamic-dns-cnn-",
    {
        "unbounded": ("a plain CNN as predictor", diagonal(CNN(bound=None))),
        "tanh": ("the same, bounded by tanh", diagonal(CNN(bound="tanh"))),
        "sigmoid": ("by a sigmoid", diagonal(CNN(bound="sigmoid"))),
        "normalized": ("of length 1", diagonal(CNN(bound="normalize"))),
    },
)
CHEAPER = named(
    "cifar10-dynamic-dns-",
    {
        "half-width": ("32 hidden units", diagonal(replace(PREDICTOR, hidden=32))),
        "half-resolution": (
            "M at every second row and column, interpolated",
            diagonal(replace(PREDICTOR, resolution=2)),
        ),
        "1x1": ("the second layer 1×1", diagonal(replace(PREDICTOR, last_kernel_size=1))),
    },
)
# Factors on the filters: with MACS the plain network has 0.997 of the multiplications of dynamic
# DNS (`models.counts.macs`); with SLOW 0.98 of the time of its training step
# (`python -m benchmarks recipes --dtype fp32 --threads 1`: 128 images, a CPU without AMX).
MACS, SLOW = 1.5625, 1.8125
CONTROLS = named(
    "cifar10-cnn-",
    {
        "macs": ("plain, with as many multiplications as dynamic DNS", replace(BASE, width=MACS)),
        "time": ("plain, about as slow as dynamic DNS on a CPU", replace(BASE, width=SLOW)),
    },
)
# Times of an update over the plain CNN's, likewise: the plain CNN trains as long in time.
LONGER_RECIPES = {
    f"{data}-cnn-long-{name}": (
        f"plain, trained for the time of dynamic {name.upper()}",
        replace(scale_recipe(BASE, times), dataset=data),
    )
    for data in ("cifar10", "cifar100")
    for name, times in (("dns", 3.3), ("uns", 9.95))
}
# Factors on the filters with which the plain network's update takes as long as that of each
# (bf16, 128 images, one thread of an EPYC with AVX-512): 1.9, 4.0 and 3.3 of the plain CNN's.
LIGHT_RECIPES = named(
    "cifar10-",
    {
        "light-diagonal": ("a diagonal matrix by a light predictor", diagonal(Light())),
        "light-full": ("a full matrix by a light predictor", dynamic_recipe(Full(), Light())),
        "light-low-rank": ("I plus one of rank 1, likewise", dynamic_recipe(LowRank(), Light())),
    },
) | {
    f"cifar10-cnn-time-{name}": (f"plain, about as slow as {other}", replace(BASE, width=width))
    for name, other, width in (
        ("light-diagonal", "cifar10-light-diagonal", 1.34375),
        ("light-full", "cifar10-light-full", 2.125),
        ("light-low-rank", "cifar10-light-low-rank", 2.0),
    )
}
BASELINE_RECIPES = named(
    "cifar10-",
    {
        "dynamic-dns-per-image": (
            "one diagonal matrix an image",
            diagonal(replace(PREDICTOR, per_image=True)),
        ),
        "pooled": (
            "one full matrix an image, from the averages of a layer's input",
            dynamic_recipe(Full(), Pooled()),
        ),
        "pooled-diagonal": ("one diagonal matrix an image, from the averages", diagonal(Pooled())),
        "condconv": ("every image mixes 4 kernels", replace(BASE, model="cnn9_condconv")),
        "dynamic-filter": (
            "every image's kernel is generated",
            replace(BASE, model="cnn9_dynamic_filter"),
        ),
        "deformable": (
            "modulated deformable convolutions",
            replace(BASE, model="cnn9_deformable"),
        ),
    },
)

STUDIES: dict[str, Family] = {
    "ablations": ("where the paper and the released code differ", ABLATION_RECIPES),
    "sharing": ("M for each filter", SHARING_RECIPES),
    "shapes": ("kernel shapes that learn faster", SHAPE_RECIPES),
    "bounds": ("CNN predictors without batch normalisation", BOUND_RECIPES),
    "cheaper": ("cheaper predictors", CHEAPER),
    "light": ("light predictors, and plain networks as slow as they", LIGHT_RECIPES),
    "controls": ("plain networks as dear as dynamic similarity", CONTROLS | LONGER_RECIPES),
    "structures": ("constraints on static M, §3.4", STRUCTURE_RECIPES),
    "baselines": ("other kernels that depend on the image", BASELINE_RECIPES),
}

"""CIFAR-10 and CIFAR-100 as in the paper's table 8: self-attention as a dynamic global similarity.

Appendix B.2 gives the filters and "mild data augmentation"; the rest follows the authors' code of
the SphereNet with attention (https://github.com/wy1iu/NSL, `nsl_global_ns`): mirror images and no
crops, Adam at 1e-3 with the usual drops, hyperspherical kernels with a penalty for orthogonality
(1e-4) and without decay. We train all four rows in this way; the plain networks' kernels decay by
5e-4, as the authors' other kernels do. Their code also decays the attention's hyperspherical
kernels.
"""

from dataclasses import replace

from neural_similarity.lab.train.recipe import Recipe

MILD = Recipe(model="cnn9_wide", crop=0, optimizer="adam", lr=1e-3)
SPHERE = replace(MILD, model="spherenet9", orthogonality=1e-4)

CIFAR10 = {
    "cifar10-wide-cnn": ("CNN-9 with 128, 192 and 256 filters", MILD),
    "cifar10-wide-cnn-attention": (
        "the same with self-attention behind two pools",
        replace(MILD, model="cnn9_wide_attention"),
    ),
    "cifar10-spherenet": ("the same with hyperspherical convolutions", SPHERE),
    "cifar10-spherenet-attention": (
        "hyperspherical, with self-attention",
        replace(SPHERE, model="spherenet9_attention"),
    ),
}

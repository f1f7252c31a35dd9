r"""§5.2: a layer whose similarity is $\tilde W + \Delta t\, M$ is a step of Euler's method.

Where $W \tilde W$ picks the centre of the patch, $W (\tilde W + \Delta t\, M) X = x + \Delta t\,
W M X$: a residual layer, and a step of $\dot x = g(x)$ with $g$ the convolution by $W M$. The M of
§5.2 is the full matrix over channels and taps, `ns.Unstructured()`. A K×K matrix that all channels
share has K² entries for C² K equations: with more than K pairs of channels none solves them.
"""

from typing import Any, cast

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor, nn
from torch.nn import functional as F

import neural_similarity as ns
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity.nn import StaticSimilarity
from neural_similarity_paper.theory.measures import (
    gaussian_numbers,
    relative_distance,
    seed_generators,
)

CHANNELS, TAPS, CENTRE, LENGTH = 4, 9, 4, 5
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)


def residual_layer(weight: Tensor, m: Tensor, step: float) -> ns.Conv2d:
    r"""The layer of kernel W and similarity $\tilde W + \Delta t\, M$.

    W (channels, channels, 3, 3) is of full rank, M (9·channels, 9·channels).
    """
    spec = ns.Static(ns.Unstructured())
    channels = len(weight)
    layer = ns.Conv2d(
        channels, channels, 3, padding=1, bias=False, dtype=weight.dtype, similarity=spec
    )
    layer.weight.data.copy_(weight)
    # The full W̃ of least norm with W W̃ the centre tap.
    selecting = torch.linalg.pinv(weight.flatten(1)) @ centre_tap(channels)
    static = cast(StaticSimilarity, layer.similarity)
    static.raw.data.copy_((selecting + step * m - torch.eye(len(m), dtype=m.dtype)).flatten())
    return layer


def centre_tap(channels: int) -> Tensor:
    """The kernel that returns its input, (channels, 9·channels)."""
    kernel = torch.zeros(channels, channels, TAPS, dtype=torch.float64)
    kernel[range(channels), range(channels), CENTRE] = 1
    return kernel.flatten(1)


def compute(seeds: int = 5) -> dict[str, Any]:
    """Compare layers of the library with Euler's method, and this with the exact solution.

    Errors and misfits are relative, in the Frobenius norm; lists are over seeds.
    """
    results = [_one_seed(generator) for generator in seed_generators(seeds)]
    steps, flows, full, shared = zip(*results, strict=True)
    slopes = np.polyfit(np.log(DEPTHS[-4:]), np.log(np.transpose(flows)[-4:]), 1)[0]
    return {
        "layers": DEPTHS,
        # Largest difference between a layer of the library and x + Δt g(x), in float64.
        "step_errors": steps,
        # Of networks of so many layers, Δt = 1/layers, against x at t = 1: lists over seeds.
        "flow_errors": np.transpose(flows).tolist(),
        # Minus the slope of log error against log layers for the last four; Euler's method has 1.
        "order": (-slopes).tolist(),
        # Of W W̃ from the centre tap, for the best full W̃, and the best that all channels share.
        "full_misfit": full,
        "shared_misfit": shared,
    }


@torch.no_grad()
def _one_seed(generator: torch.Generator) -> tuple[float, list[float], float, float]:
    weight = gaussian_numbers(generator, CHANNELS, CHANNELS, 3, 3) / 5
    m = gaussian_numbers(generator, CHANNELS * TAPS, CHANNELS * TAPS) / 5
    x = gaussian_numbers(generator, 1, CHANNELS, LENGTH, LENGTH)
    g = (weight.flatten(1) @ m).view_as(weight)
    by_hand = x + 0.1 * F.conv2d(x, g, padding=1)
    step_error = (residual_layer(weight, m, 0.1)(x) - by_hand).abs().max().item()
    solution = exact_solution(x, g)
    flows = []
    for count in DEPTHS:
        network = nn.Sequential(*[residual_layer(weight, m, 1 / count)] * count)
        flows.append(relative_distance(network(x), solution))
    full, shared = (centre_misfit(weight, shared=shared) for shared in (False, True))
    return step_error, flows, full, shared


def exact_solution(x: Tensor, kernel: Tensor) -> Tensor:
    """x at t = 1 for x' = kernel * x, by the exponential of the convolution's matrix (scipy)."""
    basis = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape[1:])
    matrix = F.conv2d(basis, kernel, padding=1).flatten(1).mT
    return (torch.from_numpy(expm(matrix.numpy())) @ x.flatten()).view_as(x)


def centre_misfit(weight: Tensor, *, shared: bool) -> float:
    r"""Relative distance of $W \tilde W$ from the centre tap, for the best $\tilde W$."""
    target = centre_tap(len(weight))
    if shared:  # A row for every kernel and channel: the same K×K matrix acts on all.
        weight, target = weight.reshape(-1, TAPS), target.reshape(-1, TAPS)
    best = torch.linalg.pinv(weight.flatten(1)) @ target
    return relative_distance(weight.flatten(1) @ best, target)


def draw_result(euler: dict[str, Any], figure: Any) -> None:
    """Draw the error against the number of layers."""
    constant = float(np.mean(euler["flow_errors"][-1])) * euler["layers"][-1]
    look = {"c": "tab:blue", "alpha": 0.6}
    order_1 = [(count, constant / count) for count in euler["layers"]]
    curves = [
        Curve(zip(euler["layers"], e, strict=True), "", "o-", look)
        for e in np.transpose(euler["flow_errors"])
    ]
    draw_curves(
        figure.subplots(),
        [*curves, Curve(order_1, "order 1", "k:")],
        xlabel="layers of Δt = 1/layers", ylabel="relative error at t = 1",
        xscale="log", yscale="log",
        title=f"Residual layers against x' = g(x); one layer = one step to "
        f"{max(euler['step_errors']):.0e}",
    )  # fmt: skip

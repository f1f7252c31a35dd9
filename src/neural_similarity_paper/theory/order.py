r"""§6: with a linear predictor of M, one dynamic layer is a quadratic function of its input.

$w^\top M(x)\, x$ with $M(x) = I + \sum_k x_k T_k$ is $w^\top x + x^\top B x$ for
$B_{kq} = \sum_p w_p (T_k)_{pq}$, which can be any matrix, also where every T is diagonal:
$B_{kq} = w_q (T_k)_{qq}$. A plain layer is affine. For standard normal x the best affine fit of
$x^\top A x$ is its mean, tr A, and leaves the variance $2\, \|(A + A^\top)/2\|_F^2$.
"""

from typing import Any

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity_paper.theory.measures import gaussian_numbers, seed_generators

FEATURES, SAMPLES = 6, 1024
STEPS, EVERY, RATE = 2000, 20, 0.03
STRUCTURE_CASES = {"plain": None, "diagonal": ns.Diagonal(), "full": ns.Full()}


def quadratic_variance(matrix: Tensor) -> float:
    """The variance of xᵀ A x for standard normal x."""
    return float(2 * ((matrix + matrix.T) / 2).square().sum())


def linear_predictor(geometry: ns.nn.Geometry, scalars: int) -> nn.Module:
    """An affine predictor of M, whose window is the layer's whole input."""
    return nn.Conv1d(geometry.in_channels, scalars, geometry.kernel_size[0])


def layer_of(structure: Any) -> nn.Linear:
    """A layer of the library in float64; a dynamic one starts at M = I."""
    similarity = None if structure is None else ns.Dynamic(structure, linear_predictor)
    return ns.Linear(FEATURES, 1, dtype=torch.float64, similarity=similarity)


def fit_layer(layer: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Minimise the mean squared error by Adam; return it every `EVERY` steps and at the last."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    errors = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (layer(x)[:, 0] - y).square().mean()
        loss.backward()
        if step % EVERY == 0 or step == STEPS - 1:
            errors.append(loss.item())
        optimizer.step()
        schedule.step()
    return errors


def best_affine(x: Tensor, y: Tensor) -> float:
    """The least mean squared error of an affine function."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    solution = torch.linalg.lstsq(design, y[:, None]).solution
    return float((design @ solution - y[:, None]).square().mean())


def compute(seeds: int = 5) -> dict[str, Any]:
    """Fit one layer of each kind to xᵀ A x.

    Mean squared errors are over the variance of x ↦ xᵀ A x, by layer and seed.
    """
    results = [_one_seed(generator, seed) for seed, generator in enumerate(seed_generators(seeds))]
    floors, curves, tests = zip(*results, strict=True)
    by_layer = {name: [each[name] for each in curves] for name in STRUCTURE_CASES}
    return {
        # Of the best affine fit to the training inputs, by least squares; the formula has 1.
        "floor": floors,
        "train": {name: [curve[-1] for curve in each] for name, each in by_layer.items()},
        # On an equal number of fresh inputs.
        "test": {name: [each[name] for each in tests] for name in STRUCTURE_CASES},
        # On the training inputs, every `EVERY` steps of Adam.
        "curves": by_layer,
    }


def _one_seed(
    generator: torch.Generator, seed: int
) -> tuple[float, dict[str, list[float]], dict[str, float]]:
    matrix = gaussian_numbers(generator, FEATURES, FEATURES)
    x, fresh = gaussian_numbers(generator, 2, SAMPLES, FEATURES)
    y, unseen = (torch.einsum("np,pq,nq->n", z, matrix, z) for z in (x, fresh))
    scale = quadratic_variance(matrix)
    curves, tests = {}, {}
    for name, structure in STRUCTURE_CASES.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = layer_of(structure)
        curves[name] = [error / scale for error in fit_layer(layer, x, y)]
        with torch.no_grad():
            tests[name] = float((layer(fresh)[:, 0] - unseen).square().mean()) / scale
    return best_affine(x, y) / scale, curves, tests


def draw_result(order: dict[str, Any], figure: Any) -> None:
    """Draw the training error against steps."""
    axes, colours = figure.subplots(), ("tab:gray", "tab:blue", "tab:orange")
    curves = []
    for (name, runs), colour in zip(order["curves"].items(), colours, strict=True):
        label = f"{name} M" if STRUCTURE_CASES[name] else "plain layer"
        curves += [
            Curve([(EVERY * at, error) for at, error in enumerate(run)], "" if index else label,
                  look={"c": colour, "alpha": 0.7})
            for index, run in enumerate(runs)
        ]  # fmt: skip
    axes.axhline(1, c="k", ls=":", label="floor of affine functions")
    draw_curves(
        axes, curves, xlabel="step of Adam", ylabel="mean squared error ÷ variance",
        title="One layer fits x ↦ xᵀ A x", yscale="log",
    )  # fmt: skip

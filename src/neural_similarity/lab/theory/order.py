r"""§6: with a linear predictor of M, a dynamic layer is a quadratic function of its input.

$w_o^\top M(x)\, x$ with $M(x) = I + B + \sum_k x_k T_k$ has the quadratic part $x^\top Q_o x$ for
$(Q_o)_{kq} = \sum_p w_{op} (T_k)_{pq}$: any matrices, as long as there are no more outputs than
inputs. A diagonal M that all outputs share has $(Q_o)_{kq} = w_{oq} (T_k)_{qq}$, any matrix for one
output, but the same one with other factors on its columns for the next. A plain layer is affine.
For standard normal x the best affine fit of $x^\top A x$ is its mean, tr A, and leaves the variance
$2\, \|(A + A^\top)/2\|_F^2$.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.lab.theory.measures import generators

FEATURES, SAMPLES = 6, 512
OUTPUTS = (1, 2)
ITERATIONS = 100
LAYERS = {"plain": None, "diagonal": ns.Diagonal(), "full": ns.Full()}


@dataclass(frozen=True)
class Order:
    """Mean squared errors over the variance of x ↦ xᵀ A x, an A for each of 1 or 2 outputs."""

    floor: dict[str, Sequence[float]]
    """Of the best affine function of the training inputs, by outputs and seed; about 1."""
    train: dict[str, dict[str, Sequence[float]]]
    """By outputs, layer and seed."""
    test: dict[str, dict[str, Sequence[float]]]
    """On as many fresh inputs."""
    curves: dict[str, dict[str, Sequence[Sequence[float]]]]
    """On the training inputs after each of L-BFGS's iterations."""


def variance(matrix: Tensor) -> float:
    """Of xᵀ A x for standard normal x."""
    return float(2 * ((matrix + matrix.T) / 2).square().sum())


def linear_predictor(geometry: ns.nn.Geometry, scalars: int) -> nn.Module:
    """An affine function of the layer's input, which is a window of its own size."""
    return nn.Conv1d(geometry.in_channels, scalars, geometry.kernel_size)


def layer_of(structure: Any, outputs: int) -> nn.Linear:
    """A layer of the library in float64, M predicted without gains."""
    similarity = structure and ns.Dynamic(structure, linear_predictor, init="released")
    return ns.Linear(FEATURES, outputs, dtype=torch.float64, similarity=similarity)


def fit(layer: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Minimise the mean squared error by L-BFGS; the error after every iteration."""
    # One iteration a call, as the curve is to have all of them.
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=1, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=0, tolerance_change=0,
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        return loss

    errors = []
    for _ in range(ITERATIONS):
        errors.append(optimizer.step(closure).item())
        if errors[-1] < 1e-16:
            break
    return errors


def best_affine(x: Tensor, y: Tensor) -> float:
    """The least mean squared error of an affine function."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    solution = torch.linalg.lstsq(design, y).solution
    return float((design @ solution - y).square().mean())


def compute(seeds: int = 5) -> Order:
    """Fit one layer of each kind to quadratic forms."""
    results = {str(count): _all(count, seeds) for count in OUTPUTS}
    return Order(*({name: each[part] for name, each in results.items()} for part in range(4)))


def _all(outputs: int, seeds: int) -> tuple[list[float], *tuple[dict[str, list[Any]], ...]]:
    """Floors, last training errors, test errors and curves by layer and seed."""
    rows = [_one(generator, seed, outputs) for seed, generator in enumerate(generators(seeds))]
    floors, by_layer, on_fresh = zip(*rows, strict=True)
    curves = {name: [each[name] for each in by_layer] for name in LAYERS}
    tests = {name: [each[name] for each in on_fresh] for name in LAYERS}
    train = {name: [curve[-1] for curve in each] for name, each in curves.items()}
    return list(floors), train, tests, curves


def _one(
    generator: torch.Generator, seed: int, outputs: int
) -> tuple[float, dict[str, list[float]], dict[str, float]]:
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    matrices = torch.randn(outputs, FEATURES, FEATURES, **options)
    x, fresh = torch.randn(2, SAMPLES, FEATURES, **options)
    y, unseen = (torch.einsum("np,opq,nq->no", z, matrices, z) for z in (x, fresh))
    scale = sum(map(variance, matrices)) / outputs
    curves, tests = {}, {}
    for name, structure in LAYERS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = layer_of(structure, outputs)
        curves[name] = [error / scale for error in fit(layer, x, y)]
        with torch.no_grad():
            tests[name] = float((layer(fresh) - unseen).square().mean()) / scale
    return best_affine(x, y) / scale, curves, tests


def draw(order: Order, figure: Any) -> None:
    """Training error against iterations, by the number of outputs."""
    colours = {"plain": "tab:gray", "diagonal": "tab:blue", "full": "tab:orange"}
    panels = figure.subplots(1, len(order.curves), sharey=True)
    for axes, (outputs, by_layer) in zip(panels, order.curves.items(), strict=True):
        for name, curves in by_layer.items():
            for index, curve in enumerate(curves):
                label = None if index else f"{name} M" if LAYERS[name] else "plain layer"
                axes.semilogy(curve, c=colours[name], alpha=0.7, label=label)
        axes.axhline(1, c="k", ls=":", label="variance")
        axes.set(
            xlabel="iteration of L-BFGS", title=f"One layer fits x ↦ xᵀ A x, outputs: {outputs}"
        )
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean squared error ÷ variance")
    panels[0].legend()

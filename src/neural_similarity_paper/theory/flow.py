r"""Eq. 6: the gradient flow of the product of M and W.

With loss $\tfrac12 \sum_i \|y_i - W M x_i\|^2$ and $G = \sum_i (y_i - W M x_i)\, x_i^\top$, both
factors follow their negative gradients, $\dot W = G M^\top$ and $\dot M = W^\top G$, and the folded
kernel $F = W M$ follows

$$\dot F = \dot W M + W \dot M = G M^\top M + W W^\top G,$$

which is Eq. 6 transposed (our W is the paper's $W'^\top$), where a plain kernel has
$\dot F = G$. Along the flow $M M^\top - W^\top W$ is constant (Arora, Cohen, Hazan, ICML 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import neural_similarity as ns
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity.nn import StaticSimilarity
from neural_similarity_paper.theory.measures import (
    gaussian_numbers,
    relative_distance,
    seed_generators,
)

INPUTS, OUTPUTS, SAMPLES = 6, 4, 12
TIME = 1.0
STEPS = (3e-2, 1e-2, 3e-3, 1e-3)
POINTS = 51


@dataclass(frozen=True)
class Regression:
    """Samples in columns: x (inputs, samples), y (outputs, samples), all float64."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def start_layer(self) -> ns.Linear:
        """A layer of the library that starts at `weight` and M = I."""
        layer = ns.Linear(
            len(self.x), len(self.y), bias=False, dtype=torch.float64, similarity="static-full"
        )
        layer.weight.data.copy_(self.weight)
        return layer


def make_regression(generator: torch.Generator) -> Regression:
    """A regression with a solution, and an arbitrary start."""
    x = gaussian_numbers(generator, INPUTS, SAMPLES) / SAMPLES**0.5
    truth = gaussian_numbers(generator, OUTPUTS, INPUTS)
    start = gaussian_numbers(generator, OUTPUTS, INPUTS) / INPUTS**0.5
    return Regression(x, truth @ x, start)


def kernel_derivative(data: Regression, weight: Tensor, m: Tensor) -> Tensor:
    """The derivative of the folded kernel by Eq. 6."""
    gradient = (data.y - weight @ m @ data.x) @ data.x.T
    return gradient @ m.T @ m + weight @ weight.T @ gradient


def descend_layer(layer: ns.Linear, data: Regression, step: float, count: int = 1) -> ns.Linear:
    """A layer of the library after `count` more gradient steps."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=step)
    for _ in range(count):
        optimizer.zero_grad()
        (0.5 * (data.y - layer(data.x.T).T).square().sum()).backward()
        optimizer.step()
    return layer


def folded_kernel(layer: ns.Linear) -> Tensor:
    """The kernel of the plain layer that computes the same."""
    return ns.fold(layer).weight.detach().clone()


def solve_flow(data: Regression) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scipy's flow of both factors and of a plain kernel: times, W, M, plain kernels."""
    x, y = data.x.numpy(), data.y.numpy()
    shape, square = (OUTPUTS, INPUTS), (INPUTS, INPUTS)
    size = OUTPUTS * INPUTS

    def factors(_, state):
        weight, m = state[:size].reshape(shape), state[size:].reshape(square)
        gradient = (y - weight @ m @ x) @ x.T
        return np.concatenate([(gradient @ m.T).ravel(), (weight.T @ gradient).ravel()])

    def plain(_, state):
        return ((y - state.reshape(shape) @ x) @ x.T).ravel()

    times = np.linspace(0, TIME, POINTS)
    options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13, "t_eval": times}
    start = data.weight.numpy().ravel()
    both = solve_ivp(factors, (0, TIME), np.concatenate([start, np.eye(INPUTS).ravel()]), **options)
    alone = solve_ivp(plain, (0, TIME), start, **options)
    states = torch.from_numpy(both.y.T.copy())
    kernels = torch.from_numpy(alone.y.T.copy()).view(-1, *shape)
    weights, matrices = states.split([size, INPUTS**2], 1)
    return torch.from_numpy(times), weights.view(-1, *shape), matrices.view(-1, *square), kernels


def plain_flow(data: Regression, time: float) -> Tensor:
    r"""The plain kernel at `time`, $W_* + (W_0 - W_*)\, e^{-X X^\top t}$."""
    solution = data.y @ torch.linalg.pinv(data.x)
    return solution + (data.weight - solution) @ torch.linalg.matrix_exp(-time * data.x @ data.x.T)


def compute(seeds: int = 5) -> dict[str, Any]:
    """Compare gradient descent of a layer of this library with Eq. 6 and with scipy's flow.

    Errors are relative, in the Frobenius norm: a list over seeds, for every step size where they
    depend on it.
    """
    data = [make_regression(generator) for generator in seed_generators(seeds)]
    solutions = [solve_flow(each) for each in data]
    trajectory = [
        [_trajectory_error(*pair, step) for pair in zip(data, solutions, strict=True)]
        for step in STEPS
    ]
    invariants = [m @ m.mT - weights.mT @ weights for _, weights, m, _ in solutions]
    return {
        "steps": STEPS,
        # Change of the folded kernel in one step, over the step size, against Eq. 6.
        "derivative_errors": [[_derivative_error(each, step) for each in data] for step in STEPS],
        # Folded kernel at time `TIME` against scipy's solution of the flow.
        "trajectory_errors": trajectory,
        # Slope of log error against log step; gradient descent has 1.
        "trajectory_order": np.polyfit(np.log(STEPS), np.log(trajectory), 1)[0].tolist(),
        # scipy's flow of a plain kernel against its closed form.
        "plain_errors": [
            relative_distance(plain[-1], plain_flow(each, TIME))
            for each, (*_, plain) in zip(data, solutions, strict=True)
        ],
        # Change of M Mᵀ - Wᵀ W along scipy's flow.
        "invariant_drift": [relative_distance(each[-1], each[0]) for each in invariants],
        "times": solutions[0][0].tolist(),
        # Of the folded from the plain kernel, at every time; both start at W.
        "distance_to_plain": [
            ((weights @ matrices - plain).norm(dim=(1, 2)) / plain.norm(dim=(1, 2))).tolist()
            for _, weights, matrices, plain in solutions
        ],
    }


def _derivative_error(data: Regression, step: float) -> float:
    """The error at a point where M is not I: after ten steps of 0.05."""
    layer = descend_layer(data.start_layer(), data, 0.05, 10)
    m = cast(StaticSimilarity, layer.similarity).full_matrix().detach()
    derivative = kernel_derivative(data, layer.weight.detach(), m)
    before = folded_kernel(layer)
    after = folded_kernel(descend_layer(layer, data, step))
    return relative_distance((after - before) / step, derivative)


def _trajectory_error(data: Regression, solution: Sequence[Tensor], step: float) -> float:
    """The error of the layer's folded kernel at `TIME`, where the flow ends."""
    _, weights, matrices, _ = solution
    layer = descend_layer(data.start_layer(), data, step, round(TIME / step))
    return relative_distance(folded_kernel(layer), weights[-1] @ matrices[-1])


def draw_result(flow: dict[str, Any], figure: Any) -> None:
    """Draw errors against step size, and the distance between the two flows."""
    left, right = figure.subplots(1, 2)
    errors = {
        "one step against Eq. 6": flow["derivative_errors"],
        f"kernel at t = {TIME:g} against scipy": flow["trajectory_errors"],
    }
    curves = [
        Curve(zip(flow["steps"], np.mean(e, axis=1), strict=True), name, "o-")
        for name, e in errors.items()
    ]
    draw_curves(
        left, [*curves, Curve([(step, step) for step in flow["steps"]], "slope 1", "k:")],
        xlabel="step size", ylabel="relative error", title="Gradient descent of M and W",
        xscale="log", yscale="log",
    )  # fmt: skip
    look = {"c": "tab:blue", "alpha": 0.6}
    draw_curves(
        right,
        [Curve(zip(flow["times"], d, strict=True), look=look) for d in flow["distance_to_plain"]],
        xlabel="t", ylabel="relative distance", title="Flow of W M against that of plain W",
    )  # fmt: skip

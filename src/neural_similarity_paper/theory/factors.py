"""Gradient descent on products of matrices, to fit few linear measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

SIZE, RANK, MEASUREMENTS = 20, 2, 120
"""Size and rank of the unknown matrix; 400 measurements would determine it."""

ProblemKind = Literal["regression", "sensing", "completion"]


@dataclass(frozen=True)
class Problem:
    r"""Measurements $b_k = \langle A_k, W_*\rangle$ of matrices W*, one per seed, all float64."""

    operator: Tensor
    """(seeds, measurements, size²): the A_k, in rows."""
    truth: Tensor
    """(seeds, size, size), of length 1 in the Frobenius norm."""

    @property
    def measured_targets(self) -> Tensor:
        return self.operator @ self.truth.flatten(1)[..., None]

    def least_norm(self) -> Tensor:
        """The solution of least Frobenius norm, to which gradient descent on W leads from 0."""
        return (torch.linalg.pinv(self.operator) @ self.measured_targets).view_as(self.truth)


@dataclass(frozen=True)
class Start:
    r"""Where the factors of $W M_1 M_2 \cdots$ start; G is a Gaussian matrix of length 1."""

    label: str
    depth: int
    """Number of factors: 1 is a plain W, 2 is W and M."""
    weight: float
    """W starts at this times G."""
    similarity: float = 1.0
    """Each M starts at this times I, or, if random, times √size G."""
    random: bool = False


def make_problem(kind: ProblemKind, generators: Sequence[torch.Generator]) -> Problem:
    """A problem for every seed.

    Args:
        kind: "regression", on SIZE outputs of few inputs, as in §5.1; "sensing" by Gaussian
            matrices; "completion" from few entries.
        generators: one per seed.
    """
    operators, truths = zip(*(_draw_problem(kind, each) for each in generators), strict=True)
    return Problem(torch.stack(operators), torch.stack(truths))


def _draw_problem(kind: ProblemKind, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    truth = gaussian_numbers(generator, SIZE, RANK) @ gaussian_numbers(generator, RANK, SIZE)
    truth /= truth.norm()
    # Scaled so that the squares of all entries of all A_k add up to about size² in every problem.
    if kind == "regression":
        samples = MEASUREMENTS // SIZE
        inputs = gaussian_numbers(generator, samples, SIZE) / samples**0.5
        return torch.kron(torch.eye(SIZE, dtype=inputs.dtype), inputs), truth
    if kind == "sensing":
        return gaussian_numbers(generator, MEASUREMENTS, SIZE**2) / MEASUREMENTS**0.5, truth
    entries = torch.randperm(SIZE**2, generator=generator)[:MEASUREMENTS]
    return SIZE / MEASUREMENTS**0.5 * torch.eye(SIZE**2, dtype=truth.dtype)[entries], truth


def gaussian_numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def initial_factors(starts: Sequence[Start], generators: Sequence[torch.Generator]) -> list[Tensor]:
    """The factors (seeds, starts, size, size), W first; every seed's starts share its G."""
    depths = {start.depth for start in starts}
    if len(depths) != 1:
        raise ValueError(f"`starts` must have one depth, got {sorted(depths)}")
    factors = []
    for factor in range(depths.pop()):
        drawn = torch.stack([gaussian_numbers(each, SIZE, SIZE) / SIZE for each in generators])
        factors.append(torch.stack([_scale_start(drawn, start, factor) for start in starts], 1))
    return factors


def _scale_start(drawn: Tensor, start: Start, factor: int) -> Tensor:
    if factor == 0:
        return start.weight * drawn
    if start.random:
        return start.similarity * SIZE**0.5 * drawn
    return start.similarity * torch.eye(SIZE, dtype=drawn.dtype).expand_as(drawn)


def factor_product(factors: Sequence[Tensor]) -> Tensor:
    """The factors multiplied, W first."""
    whole = factors[0]
    for factor in factors[1:]:
        whole = whole @ factor
    return whole


def descend_factors(
    problem: Problem, factors: Sequence[Tensor], rate: float, snapshots: Sequence[int]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""Minimise $\tfrac12 \sum_k (b_k - \langle A_k, W M \cdots\rangle)^2$ over all factors.

    Args:
        problem: measurements.
        factors: where they start, (seeds, starts, size, size) each.
        rate: step size.
        snapshots: increasing numbers of steps, after which products and losses are kept.

    Returns:
        Products (snapshots, seeds, starts, size, size), losses (snapshots, seeds, starts) and the
        last factors.
    """
    factors = [factor.clone().requires_grad_() for factor in factors]
    targets, products, losses = problem.measured_targets, [], []
    for step in range(snapshots[-1] + 1):
        whole = factor_product(factors)
        # Starts in columns: the operator is read once for all of them.
        residual = problem.operator @ whole.flatten(2).mT - targets
        if step in snapshots:
            products.append(whole.detach().clone())  # one factor alone is `whole`, changed below
            losses.append(0.5 * residual.detach().square().sum(1))
        direction = (problem.operator.mT @ residual.detach()).mT.view_as(whole)
        gradients = torch.autograd.grad(whole, factors, direction)
        with torch.no_grad():
            for factor, gradient in zip(factors, gradients, strict=True):
                factor -= rate * gradient
    return torch.stack(products), torch.stack(losses), [factor.detach() for factor in factors]
